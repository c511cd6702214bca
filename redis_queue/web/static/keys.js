// Keys: go to a page, search, move between rows; "?" lists them.
"use strict";
(() => {
  const OFF = "redis_queue.keys_off";
  const stored = () => {
    try {
      return localStorage.getItem(OFF) === "1";
    } catch {
      return false;
    }
  };
  let off = stored();
  const links = [...document.querySelectorAll("header a[data-key]")];
  const search = () => document.querySelector("[data-search]") || document.querySelector(".find input");
  const rows = () => [...document.querySelectorAll("main tbody tr")].filter((row) => row.querySelector("a, input"));
  const current = () => document.activeElement.closest && document.activeElement.closest("main tbody tr");
  const step = (by) => {
    const all = rows();
    if (!all.length) return;
    const at = all.indexOf(current());
    const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + by, 0), all.length - 1)];
    const control = next.querySelector("th a") || next.querySelector("a, input");
    control.focus();
    next.scrollIntoView({ block: "nearest" });
  };
  const tick = () => {
    const box = current() && current().querySelector("input[type=checkbox]");
    if (box) box.click();
  };
  const follow = (selector) => {
    const link = document.querySelector(selector);
    if (link) link.click();
  };

  const dialog = document.createElement("dialog");
  dialog.id = "keys";
  dialog.setAttribute("aria-labelledby", "keys-title");
  const write = (tag, text, parent, className) => {
    const element = document.createElement(tag);
    element.textContent = text;
    if (className) element.className = className;
    parent.append(element);
    return element;
  };
  const line = (list, keys, text) => {
    const group = write("div", "", list);
    const names = write("dt", "", group);
    for (const key of keys) write("kbd", key, names);
    write("dd", text, group);
  };
  const build = () => {
    write("h2", "Keys", dialog).id = "keys-title";
    const list = write("dl", "", dialog);
    for (const link of links) line(list, ["g", link.dataset.key], link.dataset.name);
    line(list, ["/"], "Search");
    line(list, ["j"], "Next row");
    line(list, ["k"], "Previous row");
    line(list, ["x"], "Tick the row");
    line(list, ["n"], "Next page");
    line(list, ["p"], "Pause or resume updates");
    line(list, ["t"], "Light or dark colours");
    line(list, ["?"], "This list");
    const form = write("form", "", dialog);
    form.method = "dialog";
    const label = write("label", "", form, "box");
    const box = document.createElement("input");
    box.type = "checkbox";
    box.checked = !off;
    box.addEventListener("change", () => {
      off = !box.checked;
      try {
        localStorage.setItem(OFF, off ? "1" : "0");
      } catch {
        // Storage may be forbidden; the choice then lasts for one page.
      }
    });
    label.append(box, " Use keys");
    write("button", "Close", form);
    document.body.append(dialog);
  };
  build();
  const open = () => {
    if (!dialog.open) dialog.showModal();
  };
  const help = document.createElement("button");
  help.type = "button";
  help.className = "icon help";
  help.title = "Keys";
  write("span", "Keys", help);
  help.addEventListener("click", open);
  document.querySelector("#tools").append(help);

  const actions = {
    "?": open,
    "/": () => search() && (search().focus(), search().select()),
    j: () => step(1),
    k: () => step(-1),
    x: tick,
    n: () => follow("main a[rel=next]"),
    p: () => follow("#tools .pause, #tools .resume"),
    t: () => follow("#tools .theme"),
  };
  let going = false, timer = 0;
  document.addEventListener("keydown", (event) => {
    const writes = event.target.matches("input:not([type=checkbox]), select, textarea, [contenteditable]");
    if (off || writes || event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
    clearTimeout(timer);
    if (going) {
      going = false;
      const link = links.find((one) => one.dataset.key === event.key);
      if (link) {
        event.preventDefault();
        link.click();
      }
    } else if (event.key === "g") {
      going = true;
      timer = setTimeout(() => { going = false; }, 1500);
    } else if (Object.hasOwn(actions, event.key)) {
      event.preventDefault();
      actions[event.key]();
    }
  });

  // On a phone, each navigation is one row that scrolls.
  for (const here of document.querySelectorAll("nav a[aria-current]")) {
    here.parentElement.parentElement.scrollLeft = here.offsetLeft - 40;
  }
})();
