// Reads parts of pages again, and continues searches. Everything works without this script.
(function () {
  "use strict";
  var body = document.getElementById("dq-body");
  if (!body) { return; }

  function fragment(url) {
    var parsed = new URL(url, location.href);
    parsed.searchParams.set("fragment", "1");
    return fetch(parsed, { credentials: "same-origin", redirect: "error" }).then(function (answer) {
      if (!answer.headers.get("X-Delayed-Fragment")) { throw new Error("no part of a page"); }
      return answer.text();
    });
  }

  // -- refresh

  var button = document.getElementById("dq-refresh");
  var stopped = false;

  function isBusy() {
    var active = document.activeElement;
    var inBody = active && active !== document.body && body.contains(active);
    var chosen = body.querySelector("input[type=checkbox]:checked");
    return document.hidden || inBody || chosen || String(getSelection()) || body.querySelector("[data-more]");
  }

  function show(text) {
    button.textContent = text;
    button.setAttribute("aria-pressed", String(stopped));
  }

  function refresh() {
    if (stopped || isBusy()) { return plan(); }
    fragment(body.dataset.url).then(function (html) {
      if (!stopped && !isBusy()) { body.innerHTML = html; prepare(); }
      show("Stop refresh");
      plan();
    }).catch(function () {
      show("Refresh failed");
      plan();
    });
  }

  function plan() { setTimeout(refresh, Number(button.dataset.seconds) * 1000); }

  if (button) {
    button.hidden = false;
    button.addEventListener("click", function () {
      stopped = !stopped;
      show(stopped ? "Refresh" : "Stop refresh");
    });
    plan();
  }

  // -- a search that goes on

  function searchOn() {
    var more = document.getElementById("dq-more");
    if (!more || !more.dataset.more) { return; }
    var stop = more.querySelector("[data-stop]");
    var running = true;
    stop.hidden = false;
    stop.addEventListener("click", function () { running = false; stop.hidden = true; });
    fragment(more.dataset.more).then(function (html) {
      if (!running) { return; }
      var page = document.createElement("template");
      page.innerHTML = html;
      var rows = document.getElementById("dq-rows");
      page.content.querySelectorAll("#dq-rows > tr").forEach(function (row) { rows.append(row); });
      more.replaceWith(page.content.getElementById("dq-more"));
      var bar = body.querySelector(".dq-bar");
      if (bar && rows.children.length) { bar.hidden = false; }
      if (rows.children.length < 1000) { searchOn(); }
    }).catch(function () { stop.hidden = true; });
  }

  // -- boxes that scroll are stops of the Tab key, others are not

  function setStops() {
    body.querySelectorAll(".dq-scroll, figure.dq-wide").forEach(function (each) {
      if (each.scrollWidth > each.clientWidth) { each.tabIndex = 0; } else { each.removeAttribute("tabindex"); }
    });
  }

  addEventListener("resize", setStops);

  // -- checkboxes

  function showChoice() {
    var ticked = body.querySelectorAll("input[name=mark]:checked").length;
    body.querySelectorAll(".dq-bar button").forEach(function (each) { each.disabled = !ticked; });
    body.querySelectorAll(".dq-bar b").forEach(function (each) { each.textContent = ticked ? ticked + " ticked:" : "Ticked:"; });
    var all = body.querySelector("[data-all]");
    if (all) {
      all.checked = ticked > 0 && ticked === body.querySelectorAll("input[name=mark]").length;
      all.indeterminate = ticked > 0 && !all.checked;
    }
  }

  body.addEventListener("change", showChoice);

  function prepare() {
    var all = body.querySelector("[data-all]");
    if (all) {
      all.hidden = false;
      all.addEventListener("change", function () {
        body.querySelectorAll("input[name=mark]").forEach(function (each) { each.checked = all.checked; });
      });
    }
    showChoice();
    setStops();
    searchOn();
  }

  prepare();
}());
