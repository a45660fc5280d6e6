"use strict";
// Draws the plots of a page, and fetches its changing part again when the server has something new.

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function draw() {
  for (const figure of document.querySelectorAll("figure[data-plot]")) {
    const data = JSON.parse(figure.dataset.plot);
    const axis = { stroke: color("--front"), grid: { stroke: color("--line") }, ticks: { stroke: color("--line") } };
    new uPlot(
      {
        width: Math.max(280, figure.clientWidth), height: 190, cursor: { show: false }, legend: { show: false },
        scales: { y: { range: (plot, low, high) => [0, (high || 1) * 1.1] } },
        series: [{}, { label: data.unit, stroke: color("--link"), width: 2 }],
        axes: [axis, { ...axis, size: 70, label: data.unit }],
      },
      [data.x, data.y], figure,
    );
  }
}

let busy = false, again = false;

async function refresh() {
  if (busy) { again = true; return; }
  const main = document.getElementById("main"), at = document.activeElement;
  // Whoever types or marks something is not disturbed.
  if (main.contains(at) && at.tagName === "INPUT") { return; }
  if (!getSelection().isCollapsed) { return; }
  busy = true;
  try {
    const answer = await fetch(location.href, { headers: { "X-Fragment": "1" } });
    if (answer.ok) {
      const place = main.contains(at) ? [...main.querySelectorAll("a, button, .wide")].indexOf(at) : -1;
      const found = new DOMParser().parseFromString(await answer.text(), "text/html");
      main.replaceChildren(...found.body.childNodes);
      if (place >= 0) { [...main.querySelectorAll("a, button, .wide")][place]?.focus({ preventScroll: true }); }
      draw();
    }
  } finally {
    busy = false;
    if (again) { again = false; setTimeout(refresh, 1000); }
  }
}

let first = true, lost = "";

function listen() {
  const events = new EventSource("/events");
  events.onmessage = () => {
    // The first one says what the page has already, but for what was asked meanwhile.
    if (!first || lost || document.querySelector("[aria-busy]")) { refresh().catch(() => {}); }
    first = false;
    lost = "";
  };
  events.onerror = () => {
    lost ||= new Date().toLocaleTimeString();
    const age = document.querySelector(".age");
    age.textContent = `${age.textContent.split("; not live")[0]}; not live since ${lost}: the dashboard does not answer, `
      + "or wants a login. Reload the page.";
    // Refused, it does not try again by itself
    if (events.readyState === EventSource.CLOSED) { setTimeout(listen, 10_000); }
  };
}

draw();
if (location.pathname !== "/login") { listen(); }
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => location.reload());
