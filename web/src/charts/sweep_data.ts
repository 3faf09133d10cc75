/** What the charts of a sweep show, without how they are drawn. */

import { number } from "../format";
import type { Scalar, SweepAxis, SweepPoint } from "../types";

/** Chosen parts of the axes, by place of the axis; a part is `[from, until]`. */
export type Brush = Record<number, [number, number][]>;

export const BEST_PART = 0.1;

/** The line of the best value so far: from each change to the next one, and on to the last trial. */
export function stepLine(steps: [number, number][], last: number): [number, number][] {
  const end = steps.at(-1);
  return end && end[0] < last ? [...steps, [last, end[1]]] : steps;
}

/** Whether a trial is inside of the chosen parts of all axes; without a value on such an axis it is not. */
export function isBrushed(point: SweepPoint, brush: Brush): boolean {
  return Object.entries(brush).every(([axis, parts]) => {
    const value = point.line[Number(axis)];
    return (
      !parts.length ||
      (typeof value === "number" && parts.some(([from, until]) => value >= from && value <= until))
    );
  });
}

/** The trials that are chosen, by number; null if nothing is chosen. */
export function brushedTrials(points: SweepPoint[], brush: Brush): ReadonlySet<number> | null {
  if (!Object.values(brush).some((parts) => parts.length)) return null;
  return new Set(points.filter((point) => isBrushed(point, brush)).map((point) => point.trial.number));
}

/** Names, numbers, or powers of ten; a logarithmic axis of less than a power of ten has no labels to read. */
export function axisType(axis: SweepAxis, values: (number | null)[]): "category" | "log" | "value" {
  if (axis.names.length) return "category";
  const known = values.filter((value) => value !== null);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  return axis.log && low > 0 && high / low >= 10 ? "log" : "value";
}

/** Whether a trial is among the best tenth; the best one always is. */
export function isBest(point: SweepPoint): boolean {
  return point.goodness >= 1 - BEST_PART;
}

export function scalar(value: Scalar | undefined): string {
  if (value === undefined) return "–";
  return typeof value === "number" ? number(value) : String(value);
}

export function paramsText(params: Record<string, Scalar>): string {
  return Object.entries(params)
    .map(([name, value]) => `${name}=${scalar(value)}`)
    .join("  ");
}

/** Parameters that differ between trials: all axes but the last one, which is the value. */
export function parametersOf(axes: SweepAxis[]): string[] {
  return axes.slice(0, -1).map((axis) => axis.name);
}
