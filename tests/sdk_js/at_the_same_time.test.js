// Concurrent operations on one sender and one receiver: each gets its own answer.

import assert from "node:assert/strict";
import { it } from "node:test";
import { behaviour, bodies, connect, inSeconds, makeQueue, peekAll, plain, receive, until } from "./bus.js";

const numbered = (kind, count) => Array.from({ length: count }, (_, number) => ({ body: `${kind} ${number}` }));
const each = (items, act) => Promise.all(items.map(act));
const together = (...calls) => Promise.all(calls.flat().map((call) => call()));

// Settle every fourth message in each of the four ways, concurrently with other calls. The ways follow one another: if
// two adjacent deliveries are settled in the same turn with different outcomes, the SDK sends the first outcome for
// both. In rhea 3.0.5, lib/session.js, write_dispositions compares outcomes only if `first !== last`, never the first
// two.
async function settleInEveryWay(receiver, messages, otherCalls) {
  const ways = [
    (message) => receiver.completeMessage(message),
    (message) => receiver.abandonMessage(message),
    (message) => receiver.deferMessage(message),
    (message) => receiver.deadLetterMessage(message),
  ];
  for (const [number, way] of ways.entries()) {
    await together(every4th(messages, number).map((message) => () => way(message)), otherCalls);
  }
}

const times = (count, call) => Array(count).fill(call);
const every4th = (items, first) => items.filter((_, number) => number % 4 === first);

behaviour("operations at the same time", () => {
  const client = connect(plain);

  it("sends, schedules, cancels, peeks, receives, renews and settles", async () => {
    const queue = await makeQueue();
    const sender = client.createSender(queue);
    const receiver = client.createReceiver(queue, { maxAutoLockRenewalDurationInMs: 0 });
    const singles = numbered("m", 24);
    const scheduled = [];
    await together(
      singles.map((message) => () => sender.sendMessages(message)),
      times(4, () => sender.sendMessages(numbered("b", 2))),
      numbered("s", 8).map((message) => async () => {
        scheduled.push(...(await sender.scheduleMessages(message, inSeconds(3600))));
      }),
    );
    for (const peeked of await together(times(8, () => peekAll(receiver)))) {
      assert.equal(peeked.length, 24 + 8 + 8);
    }
    await each(scheduled, (number) => sender.cancelScheduledMessages(number));
    const received = await receive(receiver, 32);
    assert.deepEqual(new Set(bodies(received).filter((body) => body.startsWith("m"))), new Set(bodies(singles)));
    await each(received, (message) => receiver.renewMessageLock(message));
    await settleInEveryWay(receiver, received, times(4, () => peekAll(receiver)));
    const deferred = every4th(received, 2);
    const deferredMessages = await each(deferred, (message) =>
      receiver.receiveDeferredMessages(message.sequenceNumber),
    );
    await each(deferredMessages.flat(), (message) => receiver.renewMessageLock(message));
    await each(deferredMessages.flat(), (message) => receiver.completeMessage(message));
    await each(await receive(receiver, 8), (message) => receiver.completeMessage(message));
    const dead = client.createReceiver(queue, { subQueueType: "deadLetter" });
    await each(await receive(dead, 8), (message) => dead.completeMessage(message));
    await until(async () => (await peekAll(receiver)).length === 0);
    assert.deepEqual(await peekAll(dead), []);
  });

  it("reads, sets and renews a session while its messages are settled", async () => {
    const queue = await makeQueue({ requiresSession: true });
    await client.createSender(queue).sendMessages(numbered("m", 16).map((message) => ({ ...message, sessionId: "s" })));
    const receiver = await client.acceptSession(queue, "s", { maxAutoLockRenewalDurationInMs: 0 });
    const received = await receive(receiver, 16);
    await together(
      times(4, () => receiver.setSessionState("a state")),
      times(4, () => receiver.renewSessionLock()),
      times(4, () => receiver.peekMessages(2)),
    );
    const states = await together(times(8, () => receiver.getSessionState()));
    assert.deepEqual(new Set(states), new Set(["a state"]));
    await settleInEveryWay(receiver, received, [
      ...times(2, () => receiver.renewSessionLock()),
      ...times(2, () => receiver.getSessionState()),
    ]);
    const deferredMessages = await each(every4th(received, 2), (message) =>
      receiver.receiveDeferredMessages(message.sequenceNumber),
    );
    await each(deferredMessages.flat(), (message) => receiver.completeMessage(message));
    await each(await receive(receiver, 4), (message) => receiver.completeMessage(message));
    assert.deepEqual(await receiver.peekMessages(10), []);
    await receiver.close();
  });
});
