// Show times in the zone of the browser, unless the server sets a zone; tooltips stay in UTC.
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
  const localize = () => {
    for (const time of main.querySelectorAll("time[datetime]")) {
      const text = write(time.dateTime, time.dataset.form);
      if (text && time.textContent !== text) time.textContent = text;
    }
    for (const item of main.querySelectorAll("[data-from]")) {
      const from = write(item.dataset.from), until = write(item.dataset.until);
      if (from && until) item.title = `${from} to ${until}`;
    }
    for (const title of main.querySelectorAll("title[data-at]")) {
      const text = `${write(title.dataset.at, "clock")}: ${title.dataset.what}`;
      if (title.textContent !== text) title.textContent = text;
    }
    for (const zone of main.querySelectorAll(".zone")) if (zone.textContent !== name) zone.textContent = name;
  };
  localize();
  // Updated content arrives in the zone of the server.
  new MutationObserver(localize).observe(main, { childList: true });
})();
