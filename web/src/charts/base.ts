/** What all charts have in common: axes, tooltips, time labels. */

import type { EChartsCoreOption } from "echarts/core";

import type { Palette } from "./palette";

export type Option = EChartsCoreOption;

/** A tooltip as elements: text stays text, and the content security policy allows no styles in HTML. */
export function tip(title: string, rows: [string, string][]): HTMLElement {
  const box = document.createElement("div");
  box.className = "tip";
  const head = document.createElement("b");
  head.textContent = title;
  box.append(head);
  for (const [name, value] of rows) {
    if (value === "") continue;
    const row = document.createElement("div");
    const left = document.createElement("span");
    const right = document.createElement("span");
    left.textContent = name;
    right.textContent = value;
    row.append(left, right);
    box.append(row);
  }
  return box;
}

export const TIME_LABELS = {
  year: "{yyyy}",
  month: "{MMM}",
  day: "{d} {MMM}",
  hour: "{HH}:{mm}",
  minute: "{HH}:{mm}",
  second: "{HH}:{mm}:{ss}",
  millisecond: "{HH}:{mm}:{ss}",
};

function tooltip(palette: Palette): Option {
  return {
    backgroundColor: palette.surface,
    borderColor: palette.line,
    borderWidth: 1,
    padding: 0,
    textStyle: { color: palette.text, fontSize: 12 },
    confine: true,
    transitionDuration: 0,
    extraCssText: "",
  };
}

/** The look of an axis; `label` are further options of its labels. */
export function axis(palette: Palette, label: object = {}): Option {
  return {
    axisLine: { lineStyle: { color: palette.line } },
    axisTick: { lineStyle: { color: palette.line } },
    axisLabel: { color: palette.faint, fontSize: 11, hideOverlap: true, ...label },
    splitLine: { lineStyle: { color: palette.line, opacity: 0.6 } },
    nameTextStyle: { color: palette.faint, fontSize: 11 },
  };
}

export function timeAxis(palette: Palette, more: Option = {}): Option {
  return { type: "time", ...axis(palette, { formatter: TIME_LABELS }), splitLine: { show: false }, ...more };
}

/** A power of two with at most four steps up to a limit: memory comes in such sizes. */
export function niceStep(limit: number): number {
  return 2 ** Math.ceil(Math.log2(Math.max(limit, 1e-9) / 4));
}

export const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'Liberation Sans', Arial, sans-serif";

/** What every chart begins with; `more` are further options of its tooltip. */
export function common(palette: Palette, more: object = {}): Option {
  return {
    animation: false,
    textStyle: { fontFamily: FONT, color: palette.text },
    tooltip: { ...tooltip(palette), ...more },
  };
}

/** The name of an axis, beside its middle. */
export function named(name: string, nameGap: number): Option {
  return { name, nameLocation: "middle", nameGap };
}
