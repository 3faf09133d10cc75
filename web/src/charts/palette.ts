/** Colours of the charts: those of the style sheet, and one for each group. */

const NAMES = ["text", "faint", "line", "surface", "lane", "accent", "good", "bad", "held", "others", "now"] as const;

export interface Palette extends Record<(typeof NAMES)[number], string> {
  heat: [string, string, string];
  series: string[];
}

export function readPalette(): Palette {
  const style = getComputedStyle(document.documentElement);
  const colour = (name: string): string => longHex(style.getPropertyValue(`--${name}`).trim());
  return {
    ...(Object.fromEntries(NAMES.map((name) => [name, colour(name)])) as Record<(typeof NAMES)[number], string>),
    heat: [colour("heat-0"), colour("heat-1"), colour("heat-2")],
    series: Array.from({ length: 8 }, (_, index) => colour(`series-${index}`)),
  };
}

/** `#rrggbb` for `#rgb`, which the build makes of some colours. */
export function longHex(colour: string): string {
  return /^#[0-9a-f]{3}$/i.test(colour) ? `#${[...colour.slice(1)].map((digit) => digit + digit).join("")}` : colour;
}

/** The colour with a number that the server chose; without one, that of jobs without a group. */
export function colourOf(place: number | undefined, palette: Palette): string {
  return (place === undefined ? undefined : palette.series[place]) ?? palette.others;
}

/** The name of that colour in the style sheet. */
export function colourName(place: number | undefined): string {
  return place === undefined ? "others" : `series-${place}`;
}

/** A colour between three, for a part from 0 to 1. Colours are `#rrggbb`. */
export function heat(part: number, [low, middle, high]: [string, string, string]): string {
  return part < 0.5 ? mixed(low, middle, part * 2) : mixed(middle, high, part * 2 - 1);
}

export function mixed(from: string, to: string, part: number): string {
  const channel = (colour: string, index: number): number => parseInt(colour.slice(1 + 2 * index, 3 + 2 * index), 16);
  const bytes = [0, 1, 2].map((index) =>
    Math.round(channel(from, index) + (channel(to, index) - channel(from, index)) * part),
  );
  return `#${bytes.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}
