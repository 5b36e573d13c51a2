() => {
  const parsed = (text) => {
    const found = text.match(/[\d.]+/g).map(Number);
    const scaled = text.startsWith("color(") ? found.map((one, at) => (at < 3 ? one * 255 : one)) : found;
    return [...scaled.slice(0, 3), scaled[3] ?? 1];
  };
  const over = (top, below) => top.slice(0, 3).map((one, at) => one * top[3] + below[at] * (1 - top[3]));
  const background = (node) => {
    const layers = [];
    for (let one = node; one; one = one.parentElement) {
      const colour = parsed(getComputedStyle(one).backgroundColor);
      layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((one) => one / 255).map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const poor = [];
  let seen = 0;
  for (const node of document.querySelectorAll("body *")) {
    const text = [...node.childNodes].filter((one) => one.nodeType === 3).map((one) => one.data.trim()).join("");
    const style = getComputedStyle(node);
    if (!text || node.disabled || !node.checkVisibility({ visibilityProperty: true }) || node.closest("noscript")) continue;
    const shape = node.parentElement instanceof SVGGElement && node.parentElement.querySelector("circle");
    const below = shape ? over(parsed(getComputedStyle(shape).fill), background(node)) : background(node);
    const ink = over(parsed(node instanceof SVGElement ? style.fill : style.color), below);
    const [one, other] = [light(ink), light(below)].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (other + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    seen += 1;
    if (ratio < (large ? 3 : 4.5)) poor.push(`${node.tagName}.${node.getAttribute("class")} ${ratio.toFixed(2)}: ${text.slice(0, 40)}`);
  }
  return { seen, poor };
}
