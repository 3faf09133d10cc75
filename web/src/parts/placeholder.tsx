/** What a view shows when there is nothing to show yet: loading, empty, or an error. */

import type { ComponentChildren, JSX } from "preact";

import { ApiError } from "../api";
import type { Loaded } from "../load";

export function Empty({ title, children }: { title: string; children?: ComponentChildren }): JSX.Element {
  return (
    <div class="placeholder">
      <p class="title">{title}</p>
      {children}
    </div>
  );
}

/** Grey lines of the size of what will be there. */
export function Loading({ lines = 6 }: { lines?: number }): JSX.Element {
  return (
    <div class="skeleton" role="status" aria-label="loading">
      {Array.from({ length: lines }, (_, index) => (
        <span key={index} style={{ width: `${92 - ((index * 37) % 40)}%` }} />
      ))}
    </div>
  );
}

/** What is shown while data is missing: that it is loading, or why it cannot be read. */
export function Pending({ loaded, lines }: { loaded: Pick<Loaded<unknown>, "error" | "loading">; lines: number }): JSX.Element | null {
  if (loaded.error) return <Problem error={loaded.error} />;
  return loaded.loading ? <Loading lines={lines} /> : null;
}

export function Problem({ error }: { error: Error }): JSX.Element {
  return (
    <div class="placeholder" role="alert">
      <p class="title">{error.message}</p>
      {error instanceof ApiError && error.hint ? <p>{error.hint}</p> : null}
    </div>
  );
}
