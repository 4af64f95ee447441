"use strict";
// Features that require a script: keys, the theme, and live decisions.

const typing = (e) => e.target.closest("input, textarea, select") !== null;
const places = { o: "", r: "rules", d: "descriptor", p: "playground", c: "controls", a: "audit", l: "live" };
let going = 0;

document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey) return;
  if (e.key === "Escape" && typing(e)) e.target.blur();
  if (typing(e) || !document.querySelector("nav")) return;
  if (Date.now() - going < 1500 && e.key in places) location.assign("/ui/" + places[e.key]);
  going = e.key === "g" ? Date.now() : 0;
  if (e.key === "?") location.assign("/ui/help");
  if (e.key === "/") {
    e.preventDefault();
    const field = document.querySelector("[data-search]");
    if (field) { field.focus(); field.select(); } else location.assign("/ui/rules#q");
  }
});
if (location.hash === "#q") document.getElementById("q")?.focus();

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* for this page only */ }
});

document.addEventListener("input", (e) => {
  const shown = e.target.id && document.querySelector(`output[for="${e.target.id}"]`);
  if (shown) shown.textContent = e.target.value;
});

document.addEventListener("click", async (e) => {
  const button = e.target.closest("[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(button.previousElementSibling.textContent);
  button.textContent = "Copied";
});

// A row with the pointer or the keyboard focus must not move before its button is pressed.
document.addEventListener("htmx:beforeRequest", (e) => {
  if (e.target.id === "live" && document.querySelector(".acts:hover, .acts:focus-within")) e.preventDefault();
});

const away = document.getElementById("away");
document.addEventListener("htmx:sendError", () => { away.hidden = false; });
document.addEventListener("htmx:afterRequest", (e) => { if (e.detail.successful) away.hidden = true; });

const decisions = document.getElementById("decisions");
if (decisions) {
  const most = 200, state = document.getElementById("state"), pause = document.getElementById("pause");
  const failure = document.getElementById("failure"), nothing = document.getElementById("nothing");
  let stream = null;
  const say = (text) => { state.textContent = text; };
  const open = () => {
    say("connecting");
    stream = new EventSource(decisions.dataset.events);
    stream.addEventListener("beat", () => say("live"));
    stream.addEventListener("decisions", (e) => {
      const rows = document.createElement("template");
      rows.innerHTML = e.data; // rendered and escaped by the server
      nothing.hidden = true;
      for (const row of [...rows.content.children]) decisions.prepend(row);
      while (decisions.children.length > most) decisions.lastElementChild.remove();
    });
    stream.addEventListener("failed", (e) => {
      stream.close();
      say("ended");
      failure.textContent = e.data;
      failure.hidden = false;
    });
    stream.onerror = () => say("reconnecting");
  };
  const close = () => { stream?.close(); stream = null; };
  pause.addEventListener("click", () => {
    const on = stream !== null;
    if (on) { close(); say("paused"); } else open();
    pause.setAttribute("aria-pressed", String(on));
    pause.textContent = on ? "Go on" : "Pause";
  });
  addEventListener("pagehide", close);
  open();
}
