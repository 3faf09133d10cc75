/** The code of a job: whether it was frozen at submit, and how it differs from what is there now. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { getCodeDiff } from "../api";
import { count } from "../format";
import type { CodeDiff, CodeState, FileDiff } from "../types";
import { Loading, Problem } from "./placeholder";

/** A diff that is being read, was read, or cannot be read. */
type Reading = CodeDiff | Error | "reading" | null;

export function CodeCard({ label, code }: { label: string; code: CodeState }): JSX.Element {
  const [shown, show] = useState<Reading>(null);
  const read = async (): Promise<void> => {
    show("reading");
    try {
      show(await getCodeDiff(label));
    } catch (problem) {
      show(problem instanceof Error ? problem : new Error(String(problem)));
    }
  };
  return (
    <section class="card code">
      <h2>Code</h2>
      <p>{code.frozen ? "Frozen at submit: later changes of the files do not matter." : notFrozen(code)}</p>
      {code.frozen ? (
        <button type="button" class="button" disabled={shown === "reading"} onClick={() => void read()}>
          Compare with the present code
        </button>
      ) : null}
      {shown === "reading" ? <Loading lines={4} /> : null}
      {shown instanceof Error ? <Problem error={shown} /> : null}
      {shown !== null && shown !== "reading" && !(shown instanceof Error) ? <Diff diff={shown} /> : null}
    </section>
  );
}

function notFrozen(code: CodeState): string {
  return `Not frozen: ${code.reason}.`;
}

function Diff({ diff }: { diff: CodeDiff }): JSX.Element {
  if (!diff.files.length) return <p role="status">Nothing has changed in {diff.root}.</p>;
  return (
    <>
      <p role="status">
        {count(diff.files.length, "file")} changed in {diff.root}:
      </p>
      {diff.files.map((file) => (
        <FileChange key={file.path} file={file} />
      ))}
    </>
  );
}

function FileChange({ file }: { file: FileDiff }): JSX.Element {
  const name = file.old_path ? `${file.old_path} → ${file.path}` : file.path;
  return (
    <details class="file-diff" open>
      <summary>
        {name} <span class="faint">{file.kind}</span>
      </summary>
      <div class="diff-text" role="region" aria-label={`changes of ${name}`} tabIndex={0}>
        {file.lines.map((line, index) => (
          <div key={index} class={`line ${line.kind}`}>
            {line.text}
          </div>
        ))}
        {file.lines_left_out ? <div class="line note">… more lines: stoker diff</div> : null}
      </div>
    </details>
  );
}
