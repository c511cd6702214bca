// Loads the page anew every few seconds and puts its content in place, unless somebody is about to do something in it.
"use strict";
(() => {
  const main = document.querySelector("main[data-refresh]");
  if (!main) return;
  const PAUSED = "redis_queue.paused";
  const button = document.createElement("button");
  button.type = "button";
  const paused = () => sessionStorage.getItem(PAUSED) === "1";
  const show = () => {
    button.textContent = paused() ? "Go on updating" : "Pause updates";
    button.setAttribute("aria-pressed", String(paused()));
  };
  button.addEventListener("click", () => {
    sessionStorage.setItem(PAUSED, paused() ? "0" : "1");
    show();
  });
  show();
  document.querySelector("header").append(button);

  const busy = () => {
    const focused = document.activeElement;
    const typing = focused && main.contains(focused) && /^(INPUT|SELECT|TEXTAREA|BUTTON)$/.test(focused.tagName);
    return typing || main.querySelector("tbody input:checked, .act input:checked") !== null || !getSelection().isCollapsed;
  };
  const update = async () => {
    if (document.hidden || paused() || busy()) return;
    try {
      const answer = await fetch(location.href, { credentials: "same-origin", redirect: "error" });
      if (!answer.ok) return;
      const next = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
      if (!next || busy()) return;
      const focus = document.activeElement, places = [...main.querySelectorAll(".scroll")];
      const which = places.indexOf(focus), scrolled = places.map((place) => place.scrollLeft);
      const link = focus && main.contains(focus) ? focus.getAttribute("href") : null;
      const notes = main.querySelector(".notes");
      main.replaceChildren(...next.childNodes);
      if (notes) main.prepend(notes);
      main.querySelectorAll(".scroll").forEach((place, number) => { place.scrollLeft = scrolled[number] || 0; });
      const back = which >= 0 ? main.querySelectorAll(".scroll")[which] : link && main.querySelector(`a[href="${CSS.escape(link)}"]`);
      if (back) back.focus({ preventScroll: true });
    } catch {
      // It is tried again.
    }
  };
  setInterval(update, Number(main.dataset.refresh) * 1000);
})();
