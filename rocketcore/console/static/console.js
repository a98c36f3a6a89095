// What pages do beyond lists and forms: keep themselves fresh, pause a tail, find with "/", choose all.
(() => {
  "use strict";
  const all = (selector) => document.querySelectorAll(selector);

  // A page with data-refresh loads itself again every so many seconds, while it is seen and nobody has paused it.
  let live = sessionStorage.getItem("live") !== "off";
  const show = () => {
    for (const button of all("[data-live]")) {
      button.hidden = false;
      button.setAttribute("aria-pressed", String(live));
    }
  };
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-live]")) {
      live = !live;
      sessionStorage.setItem("live", live ? "on" : "off");
      show();
    }
  });
  let waited = 0;
  setInterval(() => {
    const page = document.querySelector("[data-refresh]");
    waited += 1;
    if (page && live && !document.hidden && waited >= Number(page.dataset.refresh)) {
      waited = 0;
      htmx.trigger(page, "refresh");
    }
  }, 1000);
  document.addEventListener("htmx:afterSettle", show);

  // The tail keeps its newest rows; pausing closes its stream, and going on opens a new one.
  document.addEventListener("htmx:afterSwap", () => {
    for (const rows of all("[data-most]")) {
      while (rows.rows.length > Number(rows.dataset.most)) rows.deleteRow(-1);
      const wait = document.querySelector(".wait");
      if (wait) wait.hidden = rows.rows.length > 0;
    }
  });
  const source = document.getElementById("tail-source");
  const markup = source && source.outerHTML;
  for (const button of all("[data-pause]")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const paused = button.getAttribute("aria-pressed") === "true";
      const label = button.querySelector("span");
      button.setAttribute("aria-pressed", String(!paused));
      label.textContent = paused ? label.dataset.on : label.dataset.off;
      const now = document.getElementById("tail-source");
      if (paused) {
        now.outerHTML = markup;
        htmx.process(document.getElementById("tail-source"));
      } else {
        htmx.trigger(now, "htmx:beforeCleanupElement");
        now.replaceChildren();
      }
    });
  }

  for (const box of all("[data-all]")) {
    box.hidden = false;
    box.addEventListener("change", () => {
      for (const each of box.closest("table").querySelectorAll("tbody input[type=checkbox]")) each.checked = box.checked;
    });
  }

  // A sample is copied; browsers let pages do that from this machine or with TLS only.
  for (const button of navigator.clipboard ? all("[data-copy]") : []) {
    const label = button.textContent;
    button.hidden = false;
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(button.parentElement.querySelector("code").textContent);
      button.textContent = button.dataset.done;
      setTimeout(() => { button.textContent = label; }, 2000);
    });
  }

  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      const find = document.querySelector("[data-find]");
      if (find) {
        event.preventDefault();
        find.focus();
        find.select();
      }
    }
  });
  // In a narrow window the pages are a row: the one that is shown is in sight.
  const reveal = () => {
    for (const row of all("nav")) {
      const current = row.querySelector("[aria-current]");
      if (current && row.scrollWidth > row.clientWidth) row.scrollLeft = current.offsetLeft - row.offsetLeft - 16;
    }
  };
  addEventListener("resize", reveal);
  reveal();
  show();
})();
