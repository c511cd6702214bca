// Rows: tick all of a page, and count the ticked ones.
"use strict";
(() => {
  const forms = () => document.querySelectorAll("form.rows");
  const boxes = (form) => [...form.querySelectorAll("tbody input[name=row]")];
  const count = (form) => {
    const bar = form.querySelector(".bulk .chosen");
    if (!bar) return;
    const ticked = boxes(form).filter((box) => box.checked).length;
    const all = form.querySelector("input[name=matching]");
    bar.textContent = all && all.checked ? "All matches" : `${ticked} ticked`;
    const head = form.querySelector("thead input");
    if (!head) return;
    head.checked = ticked > 0 && ticked === boxes(form).length;
    head.indeterminate = ticked > 0 && !head.checked;
  };
  const prepare = () => {
    for (const form of forms()) {
      const place = form.querySelector("thead .choose");
      if (!place || place.querySelector("input") || !boxes(form).length) continue;
      const label = document.createElement("label");
      label.className = "tick";
      const box = document.createElement("input");
      box.type = "checkbox";
      box.autocomplete = "off";
      box.setAttribute("aria-label", "Choose all of this page");
      box.addEventListener("change", () => {
        for (const one of boxes(form)) one.checked = box.checked;
      });
      label.append(box);
      place.append(label);
      count(form);
    }
  };
  prepare();
  document.addEventListener("htmx:afterSwap", prepare);
  document.addEventListener("change", (event) => {
    const form = event.target.closest("form.rows");
    if (form) count(form);
  });
})();
