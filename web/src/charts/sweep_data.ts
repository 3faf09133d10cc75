/** What the charts of a sweep show, without how they are drawn. */

import { number } from "../format";
import type { Scalar, SweepAxis, SweepPoint } from "../types";

/** Chosen parts of the axes, by place of the axis; a part is `[from, until]`, reversed on a reversed axis. */
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
      (typeof value === "number" && parts.some((part) => value >= Math.min(...part) && value <= Math.max(...part)))
    );
  });
}

/** The trials that are chosen, by number; null if nothing is chosen. */
export function brushedTrials(points: SweepPoint[], brush: Brush): ReadonlySet<number> | null {
  if (!Object.values(brush).some((parts) => parts.length)) return null;
  return new Set(points.filter((point) => isBrushed(point, brush)).map((point) => point.trial.number));
}

export interface Scale {
  type: "category" | "log" | "value";
  /** Of a logarithmic axis; its labels are powers of it. */
  logBase?: number;
}

/**
 * Names, numbers, or powers of ten; a logarithmic axis of less than a power of ten has no labels to read.
 * Values such as 16, 32, 64 get an axis with the same distance between them.
 */
export function scaleOf(axis: SweepAxis, values: (number | null)[]): Scale {
  if (axis.names.length) return { type: "category" };
  const known = [...new Set(values.filter((value) => value !== null))].sort((one, other) => one - other);
  const [low = 0, high = 0] = [known[0], known.at(-1)];
  const ratio = commonRatio(known);
  if (ratio !== null && isPower(low, ratio)) return { type: "log", logBase: ratio };
  return axis.log && low > 0 && high / low >= 10 ? { type: "log", logBase: 10 } : { type: "value" };
}

const MOST_LABELS = 12;

/** The factor between sorted numbers if it is always the same whole number. */
function commonRatio(sorted: number[]): number | null {
  const [first = 0, second = 0] = sorted;
  const ratio = Math.round(second / first);
  if (sorted.length < 3 || sorted.length > MOST_LABELS || first <= 0 || ratio < 2) return null;
  const fits = sorted.slice(1).every((value, index) => Math.abs(value / (sorted[index] ?? 1) / ratio - 1) < 1e-9);
  return fits ? ratio : null;
}

function isPower(value: number, base: number): boolean {
  const exponent = Math.log(value) / Math.log(base);
  return Math.abs(exponent - Math.round(exponent)) < 1e-9;
}

/** A label of an axis: `0.001`, `1e-4`, `2.5e6`. */
export function tick(value: number): string {
  const rounded = Number(value.toPrecision(4));
  const small = rounded !== 0 && Math.abs(rounded) < 1e-3;
  return small || Math.abs(rounded) >= 1e6 ? rounded.toExponential().replace("+", "") : String(rounded);
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
