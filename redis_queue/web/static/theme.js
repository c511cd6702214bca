// Colours: those of the system, light or dark. Loaded before the page is painted, so that it does not flash.
"use strict";
(() => {
  const KEY = "redis_queue.theme";
  const THEMES = ["auto", "light", "dark"];
  const root = document.documentElement;
  const stored = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      // Storage may be forbidden; the choice then lasts for one page.
      return null;
    }
  };
  const apply = (theme) => {
    root.dataset.theme = THEMES.includes(theme) ? theme : "auto";
  };
  apply(stored());
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "icon theme";
    const text = document.createElement("span");
    button.append(text);
    const show = () => {
      text.textContent = `Colours: ${root.dataset.theme}`;
      button.title = text.textContent;
    };
    button.addEventListener("click", () => {
      apply(THEMES[(THEMES.indexOf(root.dataset.theme) + 1) % THEMES.length]);
      try {
        localStorage.setItem(KEY, root.dataset.theme);
      } catch {
        // See above.
      }
      show();
      root.dispatchEvent(new Event("redis_queue:theme"));
    });
    show();
    document.querySelector("#tools").append(button);
  });
  addEventListener("storage", (event) => {
    if (event.key !== KEY) return;
    apply(event.newValue);
    root.dispatchEvent(new Event("redis_queue:theme"));
  });
})();
