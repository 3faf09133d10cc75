/** Data of a view: read when the view opens, and again when something changed; old data stays until new data is there. */

import { useEffect, useRef, useState } from "preact/hooks";

import { generation } from "./state";

export interface Loaded<T> {
  data: T | null;
  error: Error | null;
  /** Whether nothing is known yet, not even old data. */
  loading: boolean;
  /** Replace the data by a newer version of it. */
  update: (change: (data: T) => T) => void;
  /** Read again soon; many calls make one request. */
  again: () => void;
}

/** The server spends at most this part (1/N) of its time on one view. */
const SHARE = 10;

interface State<T> {
  key: string;
  data: T | null;
  error: Error | null;
}

/**
 * `key` names what is read: another key reads at once and forgets the old data unless `keep` is set.
 * Between two reads at least `restMs` pass, and more where a read takes long.
 */
export function useLoaded<T>(key: string, read: () => Promise<T>, restMs = 1000, keep = true): Loaded<T> {
  const [state, setState] = useState<State<T>>({ key, data: null, error: null });
  const current = useRef({ key, read, last: 0, took: 0, timer: undefined as ReturnType<typeof setTimeout> | undefined });
  current.current.key = key;
  current.current.read = read;

  const load = useRef(async (): Promise<void> => {
    const { key: wanted, read: how } = current.current;
    const began = Date.now();
    current.current.last = began;
    try {
      const data = await how();
      if (current.current.key === wanted) setState({ key: wanted, data, error: null });
    } catch (problem) {
      const error = problem instanceof Error ? problem : new Error(String(problem));
      if (current.current.key === wanted) setState((old) => ({ key: wanted, data: old.data, error }));
    }
    current.current.took = Date.now() - began;
  });
  const again = useRef((): void => {
    if (current.current.timer !== undefined) return;
    const { last, took } = current.current;
    const wait = Math.max(0, last + Math.max(restMs, SHARE * took) - Date.now());
    current.current.timer = setTimeout(() => {
      current.current.timer = undefined;
      void load.current();
    }, wait);
  });

  useEffect(() => {
    void load.current();
  }, [key, generation.value]);
  useEffect(() => () => clearTimeout(current.current.timer), []);

  const data = keep || state.key === key ? state.data : null;
  return {
    data,
    error: state.key === key ? state.error : null,
    loading: data === null && state.error === null,
    update: (change) => setState((old) => (old.data === null ? old : { ...old, data: change(old.data) })),
    again: again.current,
  };
}
