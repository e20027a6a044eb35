// subscribe() and the message iterator: delivery to a handler, concurrency, errors and closing.

import assert from "node:assert/strict";
import { it } from "node:test";
import { behaviour, bodies, connect, makeQueue, newName, pause, peekAll, tls, until } from "./bus.js";

behaviour("subscribing", () => {
  const client = connect(tls);

  async function sent(count) {
    const queue = await makeQueue();
    await client.createSender(queue).sendMessages(Array.from({ length: count }, (_, body) => ({ body })));
    return [client.createReceiver(queue), queue];
  }

  const failOn = (errors) => async ({ error }) => void errors.push(error);

  it("completes messages after their handler returns", async () => {
    const [receiver] = await sent(5);
    const [seen, errors] = [[], []];
    const subscription = receiver.subscribe({
      processMessage: async (message) => void seen.push(message.body),
      processError: failOn(errors),
    });
    await until(() => seen.length === 5);
    await until(async () => (await peekAll(receiver)).length === 0);
    await subscription.close();
    assert.deepEqual([seen, errors], [[0, 1, 2, 3, 4], []]);
  });

  it("delivers messages sent while it waits, and none after it was closed", async () => {
    const [receiver, queue] = await sent(1);
    const seen = [];
    const subscription = receiver.subscribe({
      processMessage: async (message) => void seen.push(message.body),
      processError: async () => {},
    });
    const sender = client.createSender(queue);
    for (const body of ["now", "soon"]) {
      await sender.sendMessages({ body });
      await until(() => seen.includes(body));
    }
    await subscription.close();
    await sender.sendMessages({ body: "too late" });
    await pause(300);
    assert.ok(!seen.includes("too late"));
    assert.deepEqual(bodies(await peekAll(client.createReceiver(queue))), ["too late"]);
  });

  it("abandons a message whose handler failed, and reports the error", async () => {
    const [receiver, queue] = await sent(1);
    const [counts, errors] = [[], []];
    const subscription = receiver.subscribe({
      processMessage: async (message) => {
        counts.push(message.deliveryCount);
        if (counts.length < 3) {
          throw new Error(`attempt ${counts.length}`);
        }
      },
      processError: async (event) => void errors.push([event.errorSource, event.error.message, event.entityPath]),
    });
    await until(() => counts.length === 3);
    await subscription.close();
    assert.deepEqual(counts, [0, 1, 2]);
    const source = "processMessageCallback";
    assert.deepEqual(errors, [[source, "attempt 1", queue], [source, "attempt 2", queue]]);
  });

  it("handles up to maxConcurrentCalls messages concurrently", async () => {
    const [receiver] = await sent(9);
    let [running, most, done] = [0, 0, 0];
    const subscription = receiver.subscribe(
      {
        processMessage: async () => {
          running += 1;
          most = Math.max(most, running);
          await pause(100);
          running -= 1;
          done += 1;
        },
        processError: async () => {},
      },
      { maxConcurrentCalls: 3 },
    );
    await until(() => done === 9);
    await subscription.close();
    assert.equal(most, 3);
  });

  it("leaves settlement to the handler if autoCompleteMessages is false", async () => {
    const [receiver, queue] = await sent(2);
    const errors = [];
    const subscription = receiver.subscribe(
      {
        processMessage: (message) =>
          message.body === 0 ? receiver.completeMessage(message) : receiver.deadLetterMessage(message),
        processError: failOn(errors),
      },
      { autoCompleteMessages: false },
    );
    const dead = client.createReceiver(queue, { subQueueType: "deadLetter" });
    await until(async () => (await peekAll(dead)).length === 1);
    await subscription.close();
    assert.deepEqual(await peekAll(receiver), []);
    assert.deepEqual(errors, []);
  });

  it("reports a missing queue to the error handler", async () => {
    const receiver = client.createReceiver(newName("missing"));
    const codes = [];
    const subscription = receiver.subscribe({
      processMessage: async () => {},
      processError: async ({ error }) => void codes.push(error.code),
    });
    await until(() => codes.length > 0);
    await subscription.close();
    assert.equal(codes[0], "MessagingEntityNotFound");
  });

  it("iterates over messages as they arrive", async () => {
    const [receiver, queue] = await sent(3);
    const seen = [];
    for await (const message of receiver.getMessageIterator()) {
      seen.push(message.body);
      await receiver.completeMessage(message);
      if (seen.length === 3) {
        await client.createSender(queue).sendMessages({ body: "one more" });
      }
      if (seen.length === 4) {
        break;
      }
    }
    assert.deepEqual(seen, [0, 1, 2, "one more"]);
  });
});
