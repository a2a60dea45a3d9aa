// Draws the charts. Names from files reach the page as text only, never as HTML.
const specs = JSON.parse(document.getElementById("charts").textContent);
const tip = document.getElementById("tip");
const views = {};

function tooltip(handler, event, item, value) {
  tip.replaceChildren();
  tip.hidden = value === null || typeof value !== "object";
  if (tip.hidden) return;
  for (const [name, text] of Object.entries(value)) {
    const line = document.createElement("div");
    const title = document.createElement("b");
    title.textContent = name + ": ";
    line.append(title, String(text));
    tip.append(line);
  }
  const across = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
  const down = Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 8);
  tip.style.left = Math.max(across, 4) + "px";
  tip.style.top = Math.max(down, 4) + "px";
}

// ast: expressions are interpreted, as the page's policy forbids making code of text.
const options = { mode: "vega-lite", renderer: "svg", ast: true, actions: false,
  defaultStyle: false, tooltip };

async function draw(place) {
  const name = place.dataset.chart;
  const made = await window.vegaEmbed(place, specs[name], options);
  views[name] = made.view;
  place.dataset.ready = "yes";
}

async function save(button) {
  const name = button.dataset.of;
  const link = document.createElement("a");
  link.href = await views[name].toImageURL(button.dataset.save, 2);
  link.download = name + "." + button.dataset.save;
  link.click();
}

function show(choice) {
  for (const name of choice.dataset.of.split(" ")) {
    if (views[name]) views[name].signal("show", choice.value).runAsync();
  }
}

for (const place of document.querySelectorAll("[data-chart]")) {
  draw(place).catch((error) => {
    place.textContent = "This chart could not be drawn; the table below has its numbers.";
    console.error(error);
  });
}
for (const button of document.querySelectorAll("button[data-save]")) {
  button.addEventListener("click", () => save(button));
}
for (const choice of document.querySelectorAll("input[data-of]")) {
  choice.addEventListener("change", () => show(choice));
}

// On paper every table is open.
const closed = [];
window.addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details:not([open])")) {
    details.open = true;
    closed.push(details);
  }
});
window.addEventListener("afterprint", () => {
  for (const details of closed.splice(0)) details.open = false;
});
