"""``delayq top``: what waits and runs, as a picture that is drawn again and again.

:mod:`.state` decides by keys what is shown, :mod:`.frame` reads it by the functions of the web's
pages, :mod:`.drawing` makes lines of it, and :mod:`.loop` runs them in a :mod:`.terminal`.
"""
