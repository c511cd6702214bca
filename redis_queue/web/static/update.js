// Update the page every few seconds with htmx, unless the user types, selects or fills in a form.
"use strict";
(() => {
  const main = document.querySelector("main[hx-get]");
  if (!main) return;
  const PAUSED = "redis_queue.paused";
  const paused = () => sessionStorage.getItem(PAUSED) === "1";

  const button = document.createElement("button");
  button.type = "button";
  const label = document.createElement("span");
  button.append(label);
  const show = () => {
    label.textContent = paused() ? "Resume updates" : "Pause updates";
    button.className = paused() ? "icon resume" : "icon pause";
    button.title = label.textContent;
  };
  button.addEventListener("click", () => {
    sessionStorage.setItem(PAUSED, paused() ? "0" : "1");
    show();
  });
  show();
  // Added while empty, so that screen readers announce its first text.
  const stale = document.createElement("span");
  stale.className = "stale";
  stale.setAttribute("aria-live", "polite");
  document.querySelector("#tools").prepend(stale, button);

  let fresh = new Date(), link = null, tag = null;
  const succeed = () => {
    fresh = new Date();
    stale.textContent = "";
    document.body.classList.remove("old");
  };
  const fail = () => {
    document.body.classList.add("old");
    const zone = document.documentElement.dataset.timezone;
    const text = `not updated since ${fresh.toLocaleTimeString("sv", { timeZone: zone })}`;
    if (stale.textContent !== text) stale.textContent = text;
  };

  const changed = (control) => {
    if (control.type === "checkbox" || control.type === "radio") return control.checked !== control.defaultChecked;
    if (control.tagName === "SELECT") {
      const options = [...control.options];
      const given = options.findIndex((option) => option.defaultSelected);
      return control.selectedIndex !== Math.max(given, 0);
    }
    return control.value !== control.defaultValue;
  };
  const busy = () => {
    const focused = document.activeElement;
    const typing = focused && main.contains(focused) && /^(INPUT|SELECT|TEXTAREA|BUTTON)$/.test(focused.tagName);
    const filled = [...main.querySelectorAll("input, select, textarea")].some(changed);
    return typing || filled || !getSelection().isCollapsed || document.querySelector("dialog[open]") !== null;
  };

  document.addEventListener("htmx:beforeRequest", (event) => {
    if (event.detail.elt === main && (document.hidden || paused() || busy())) event.preventDefault();
  });
  // The server answers 304 if nothing has changed, and leaves out the tables of charts that are not open.
  document.addEventListener("htmx:configRequest", (event) => {
    if (event.detail.elt !== main) return;
    const { headers } = event.detail;
    if (tag) headers["If-None-Match"] = tag;
    headers["X-Open"] = [...main.querySelectorAll("figure.chart:has(details[open])")].map((figure) => figure.id).join(" ");
  });
  main.addEventListener("toggle", (event) => {
    if (event.target.open && event.target.matches(".chart details")) htmx.trigger(main, "redis_queue:update");
  }, true);
  document.addEventListener("htmx:beforeSwap", (event) => {
    const request = event.detail, { xhr } = request;
    if (request.requestConfig.elt !== main) return;
    // After a redirect, for example to a login, the answer is another page.
    const moved = new URL(xhr.responseURL || location.href).pathname !== location.pathname;
    request.shouldSwap = false;
    if (xhr.status === 304) succeed();
    else if (xhr.status !== 200 || moved || !/<main\s/.test(request.serverResponse)) fail();
    else if (!busy()) {
      request.shouldSwap = true;
      succeed();
      tag = xhr.getResponseHeader("ETag");
      const focus = document.activeElement;
      link = main.contains(focus) ? focus.getAttribute("href") : null;
    }
  });
  // An element may have become another row: the focus stays with its link.
  document.addEventListener("htmx:afterSwap", () => {
    const icon = document.querySelector("link[rel=icon]");
    const address = "incidents" in main.dataset ? icon.dataset.alert : icon.dataset.calm;
    if (icon.getAttribute("href") !== address) icon.href = address;
    const focus = document.activeElement;
    if (link === null || (main.contains(focus) && focus.getAttribute("href") === link)) return;
    const same = main.querySelector(`a[href="${CSS.escape(link)}"]`);
    if (same) same.focus({ preventScroll: true });
    else focus.blur();
  });
  for (const failure of ["htmx:sendError", "htmx:timeout", "htmx:sendAbort"]) {
    document.addEventListener(failure, (event) => {
      if (event.detail.elt === main) fail();
    });
  }

  const callbacks = Idiomorph.defaults.callbacks;
  // What the user has opened stays open.
  callbacks.beforeAttributeUpdated = (name, node) => name !== "open" || !/^(DETAILS|DIALOG)$/.test(node.tagName);
  // The result of an action stays until the next page.
  callbacks.beforeNodeRemoved = (node) => !(node.nodeType === Node.ELEMENT_NODE && node.matches(".notes"));
  // A chart keeps its canvas and gets new data; its table stays as it is if the answer has none.
  callbacks.beforeNodeMorphed = (old, next) => {
    if (old.nodeType !== Node.ELEMENT_NODE) return true;
    if (old.matches(".chart details")) return next.querySelector("table") !== null;
    if (!old.matches("[data-chart]")) return true;
    old.dataset.chart = next.dataset.chart;
    return false;
  };
})();
