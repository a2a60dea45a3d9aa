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

// The charts of one figure below each other, in a size of their own and with a title.
function together(button) {
  const names = button.dataset.of.split(" ").filter((name) => specs[name]);
  const parts = names.map((name) => {
    const { params, config, background, autosize, description, ...rest } = specs[name];
    return { ...rest, width: 560 };
  });
  const secret = document.body.classList.contains("secret");
  const text = (secret ? "INTERNAL: " : "") + button.dataset.title;
  return {
    title: { text, subtitle: button.dataset.mark, anchor: "start", limit: 600 },
    params: [{ name: "show", value: views[names[0]].signal("show") }],
    config: specs[names[0]].config,
    background: "white",
    padding: 12,
    vconcat: parts,
    resolve: { scale: { color: "independent", shape: "independent" } },
  };
}

async function save(button) {
  const made = await window.vegaEmbed(document.createElement("div"), together(button), options);
  const secret = document.body.classList.contains("secret") ? "internal-" : "";
  const link = document.createElement("a");
  link.href = await made.view.toImageURL(button.dataset.save, 2);
  link.download = secret + button.dataset.of.split(" ")[0] + "." + button.dataset.save;
  link.click();
  made.finalize();
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
