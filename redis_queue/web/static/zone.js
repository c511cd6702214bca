// Show times in the zone of the browser, unless the server sets a zone; tooltips have UTC as well.
"use strict";
(() => {
  const main = document.querySelector("main");
  if (!main || document.documentElement.dataset.timezone) return;
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone || "local time";
  const two = (number) => String(number).padStart(2, "0");
  const clock = (at) => `${two(at.getHours())}:${two(at.getMinutes())}`;
  const month = (at) => at.toLocaleDateString("en-GB", { month: "short" });
  const weekday = (at) => at.toLocaleDateString("en-GB", { weekday: "short" });
  const forms = {
    second: (at) =>
      `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(at)}:${two(at.getSeconds())}`,
    minute: (at) => `${two(at.getDate())} ${month(at)} ${clock(at)}`,
    day: (at) => `${weekday(at)} ${two(at.getDate())} ${month(at)} ${clock(at)}`,
    clock,
  };
  const write = (text, form) => {
    const at = new Date(text);
    return Number.isNaN(at.getTime()) ? null : forms[form || "second"](at);
  };
  const set = (element, key, text) => {
    if (text && element[key] !== text) element[key] = text;
  };
  const localize = () => {
    for (const time of main.querySelectorAll("time[datetime]")) {
      // An age stays as it is; its tooltip has the time.
      if (time.dataset.form !== "age") set(time, "textContent", write(time.dateTime, time.dataset.form));
      else if (!time.title.includes("·")) set(time, "title", `${write(time.dateTime)} · ${time.title}`);
    }
    for (const item of main.querySelectorAll("[data-from]")) {
      const from = write(item.dataset.from), until = write(item.dataset.until);
      if (from && until) set(item, "title", `${from} to ${until}`);
    }
    for (const zone of main.querySelectorAll(".zone")) set(zone, "textContent", name);
  };
  localize();
  // A time without a zone, for example one that was copied from this page, is in the zone of the browser.
  document.addEventListener("formdata", ({ formData }) => {
    for (const name of ["due_after", "due_before", "since", "until", "when", "start", "end"]) {
      const text = String(formData.get(name)).trim();
      const at = new Date(/^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$/.test(text) ? text.replace(" ", "T") : NaN);
      if (!Number.isNaN(at.getTime())) formData.set(name, at.toISOString());
    }
  });
  // Updated content arrives in the zone of the server.
  new MutationObserver(localize).observe(main, { childList: true, subtree: true, characterData: true });
})();
