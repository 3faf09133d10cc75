/** A small curve of percentages over time, as SVG: it is there before the charts are loaded. */

import type { JSX } from "preact";

export type Point = [number, number | null];

const WIDTH = 240;
const HEIGHT = 36;

/** The path of a step curve; unknown values and gaps longer than `gap` interrupt it. */
export function stepPath(
  points: Point[],
  from: number,
  until: number,
  gap: number,
  width = WIDTH,
  height = HEIGHT,
): string {
  const x = (at: number): string => (((at - from) / (until - from)) * width).toFixed(1);
  const y = (value: number): string => (height - (Math.min(100, Math.max(0, value)) / 100) * height).toFixed(1);
  let path = "";
  let last: number | null = null;
  for (const [at, value] of points) {
    if (at < from || at > until) continue;
    if (value === null || (last !== null && at - last > gap)) last = null;
    if (value === null) continue;
    path += last === null ? `M${x(at)} ${y(value)}` : `H${x(at)}V${y(value)}`;
    last = at;
  }
  return path;
}

/** The same curve as closed areas, one for each piece. */
export function stepArea(path: string, height = HEIGHT): string {
  return path
    .split("M")
    .filter((piece) => piece !== "")
    .map((piece) => {
      const start = piece.split(" ")[0] ?? "0";
      const end = [...piece.matchAll(/H([\d.-]+)/g)].at(-1)?.[1] ?? start;
      return `M${start} ${height}V${piece.slice(start.length + 1)}H${end}V${height}Z`;
    })
    .join("");
}

interface Props {
  points: Point[];
  from: number;
  until: number;
  gap: number;
  label: string;
}

export function Sparkline({ points, from, until, gap, label }: Props): JSX.Element {
  const path = stepPath(points, from, until, gap);
  return (
    <svg class="sparkline" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={label}>
      <path class="area" d={stepArea(path)} />
      <path class="line" d={path} />
    </svg>
  );
}
