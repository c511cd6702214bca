// Reload the content of the page every few seconds, unless the user is typing, selecting or filling in a form.
"use strict";
(() => {
  const main = document.querySelector("main[data-refresh]");
  if (!main) return;
  const PAUSED = "redis_queue.paused";
  const button = document.createElement("button");
  button.type = "button";
  const paused = () => sessionStorage.getItem(PAUSED) === "1";
  const show = () => {
    button.textContent = paused() ? "Resume updates" : "Pause updates";
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
  document.querySelector("header").append(button, stale);
  let fresh = new Date();
  const fail = () => {
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
    return typing || [...main.querySelectorAll("input, select, textarea")].some(changed) || !getSelection().isCollapsed;
  };
  const update = async () => {
    if (document.hidden || paused() || busy()) return;
    try {
      const answer = await fetch(location.href, { credentials: "same-origin", redirect: "error" });
      if (!answer.ok) return fail();
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const next = page.querySelector("main");
      if (!next) return fail();
      if (busy()) return;
      const focus = document.activeElement, places = [...main.querySelectorAll(".scroll")];
      const which = places.indexOf(focus), scrolled = places.map((place) => place.scrollLeft);
      const link = focus && main.contains(focus) ? focus.getAttribute("href") : null;
      const notes = main.querySelector(".notes");
      main.replaceChildren(...next.childNodes);
      document.title = page.title;
      fresh = new Date();
      stale.textContent = "";
      if (notes) main.prepend(notes);
      main.querySelectorAll(".scroll").forEach((place, number) => { place.scrollLeft = scrolled[number] || 0; });
      const back = which >= 0 ? main.querySelectorAll(".scroll")[which] : link && main.querySelector(`a[href="${CSS.escape(link)}"]`);
      if (back) back.focus({ preventScroll: true });
    } catch {
      // The next update tries again.
      fail();
    }
  };
  setInterval(update, Number(main.dataset.refresh) * 1000);
})();
