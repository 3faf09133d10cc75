/** Asks a visitor for the pass of the page. It is sent in a header, so that no address contains it. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { ApiError, call } from "../api";

export function PassForm({ enter }: { enter: () => Promise<void> }): JSX.Element {
  const [text, setText] = useState("");
  const [said, setSaid] = useState("");
  const send = async (event: Event): Promise<void> => {
    event.preventDefault();
    try {
      await call("pass", {}, { headers: { Authorization: `Bearer ${text.trim()}` } });
      await enter();
    } catch (error) {
      const refused = error instanceof ApiError && error.status === 401;
      setSaid(refused ? "This pass is not valid. It may have ended, or was revoked." : String(error));
    }
  };
  return (
    <main class="lab pass">
      <form class="card" onSubmit={(event) => void send(event)}>
        <h1>This page needs a pass</h1>
        <label for="pass">The person who runs the page gives it to you. This browser keeps it until it ends.</label>
        <input
          id="pass"
          type="text"
          value={text}
          placeholder="xxxx-xxxx-xxxx-xxxx"
          autocomplete="off"
          autocapitalize="none"
          spellcheck={false}
          onInput={({ currentTarget: { value } }) => setText(value)}
        />
        <button type="submit" class="primary">
          Show the page
        </button>
        <p class="bad" role="alert">
          {said}
        </p>
      </form>
    </main>
  );
}
