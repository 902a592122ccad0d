// Opens the report at each width and says what is wrong with it. Runs in the page around it; the
// report itself has no script.
const WIDTHS = [360, 1280];
// Swatches of legends are data's colours but no data.
const SWATCH = [14, 10];
const HUES = /var\(--(guest-fs|guest|virt|qemu|host-fs|host-queue|device|flush|neutral)\)/;

function name(element) {
  const figure = element.closest("figure");
  return (figure ? figure.id + ": " : "") + element.tagName + " " + element.textContent.trim().slice(0, 40);
}

function isData(shape) {
  const colour = (shape.getAttribute("fill") || "") + (shape.getAttribute("stroke") || "");
  const size = [shape.getAttribute("width"), shape.getAttribute("height")].map(Number);
  return HUES.test(colour) && !(size[0] === SWATCH[0] && size[1] === SWATCH[1]);
}

function texts(svg, wrong) {
  const frame = svg.getBoundingClientRect();
  const boxes = [...svg.querySelectorAll("text")].map(text => [text, text.getBoundingClientRect()]);
  boxes.forEach(([text, box], i) => {
    if (box.left < frame.left - 2 || box.right > frame.right + 2 || box.top < frame.top - 2 || box.bottom > frame.bottom + 2)
      wrong.push("cut off: " + name(text));
    for (const [other, to] of boxes.slice(i + 1)) {
      const wide = Math.min(box.right, to.right) - Math.max(box.left, to.left);
      const high = Math.min(box.bottom, to.bottom) - Math.max(box.top, to.top);
      if (wide > 1 && high > 4) wrong.push("on top of each other: " + name(text) + " and " + name(other));
    }
  });
}

function look(frame, width) {
  const wrong = [];
  const page = frame.contentDocument;
  page.querySelectorAll("details").forEach(details => { details.open = true; });
  const scroll = page.documentElement.scrollWidth;
  if (scroll > width) wrong.push("the page is " + scroll + " wide");
  for (const element of page.querySelectorAll("h1,h2,h3,p,li,figcaption,svg,dd")) {
    const box = element.getBoundingClientRect();
    if (box.width > 0 && box.right > width + 1) wrong.push("beyond the edge: " + name(element));
  }
  const figures = [...page.querySelectorAll("figure")];
  for (const figure of figures) {
    const shown = [...figure.querySelectorAll("svg")].filter(svg => svg.getBoundingClientRect().height > 0);
    if (shown.length !== 1) wrong.push(figure.id + ": " + shown.length + " drawings are shown");
    for (const svg of shown) {
      if (![...svg.querySelectorAll("rect,polyline,polygon,circle")].some(isData)) wrong.push(figure.id + ": no data");
      texts(svg, wrong);
    }
  }
  return { width, figures: figures.length, titles: figures.map(figure => figure.querySelector("h3").textContent), wrong };
}

addEventListener("load", () => {
  const seen = WIDTHS.map(width => look(document.getElementById("at-" + width), width));
  document.getElementById("seen").textContent = JSON.stringify(seen);
});
