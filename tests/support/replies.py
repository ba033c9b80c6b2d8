"""Error replies, spelled as Redis spells them."""

from __future__ import annotations

SCRIPT_BUSY = "Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
#: Error replies of Redis, by their code in the table.
REPLIES = {
    "READONLY": "READONLY You can't write against a read only replica.",
    "UNBLOCKED": "UNBLOCKED force unblock from blocking operation, instance state changed",
    "MASTERDOWN": "MASTERDOWN Link with MASTER is down",
    "LOADING": "LOADING Redis is loading the dataset in memory",
    "NOAUTH": "NOAUTH Authentication required.",
    "WRONGPASS": "WRONGPASS invalid username-password pair or user is disabled.",
    "MAXCLIENTS": "ERR max number of clients + cluster connections reached",
    "BUSY": f"BUSY {SCRIPT_BUSY}",
    "MISCONF": "MISCONF Redis is configured to save RDB snapshots, but it's unable to persist",
    "NOREPLICAS": "NOREPLICAS Not enough good replicas to write.",
    "CLUSTERDOWN": "CLUSTERDOWN The cluster is down",
    "TRYAGAIN": "TRYAGAIN Multiple keys request during rehashing of slot",
    "OOM": "OOM command not allowed when used memory > 'maxmemory'.",
    "NOPERM": "NOPERM No permissions to access a key",
    # In a script, by the version of Redis; then errors of a call or a key.
    "NOPERM of 8": "ERR ACL failure in script: No permissions to access a key script: 5",
    "NOPERM of 7": "ERR The user executing the script can't run this command script: 5",
    "READONLY of 6": "ERR Error running script (call to f_5): @user_script:1: @user_script: 1: "
    "-READONLY You can't write against a read only replica.",
    "WRONGTYPE": "WRONGTYPE Operation against a key holding the wrong kind of value",
    "ERR": "ERR user_script:1: attempt to perform arithmetic on a nil value script: 5",
}
