// Settlement: complete, abandon, defer and dead-letter, each only once.

import assert from "node:assert/strict";
import { it } from "node:test";
import {
  administration, behaviour, bodies, connect, makeQueue, peekAll, plain, receive, receiveNothing, receiveOne,
  sequenceNumber,
} from "./bus.js";

behaviour("settling", () => {
  const client = connect(plain);

  async function sent(messages) {
    const queue = await makeQueue();
    await client.createSender(queue).sendMessages(messages);
    return [client.createReceiver(queue), queue];
  }

  it("removes a completed message", async () => {
    const [receiver, queue] = await sent([{ body: "done" }, { body: "not done" }]);
    const [done, notDone] = await receive(receiver, 2);
    await receiver.completeMessage(done);
    assert.deepEqual(bodies(await peekAll(receiver)), ["not done"]);
    await receiver.completeMessage(notDone);
    assert.equal((await administration.getQueueRuntimeProperties(queue)).totalMessageCount, 0);
  });

  it("completes many messages concurrently", async () => {
    const [receiver] = await sent(Array.from({ length: 40 }, (_, number) => ({ body: number })));
    const messages = await receive(receiver, 40);
    await Promise.all(messages.map((message) => receiver.completeMessage(message)));
    assert.deepEqual(await peekAll(receiver), []);
  });

  it("locks a message for one receiver", async () => {
    const [receiver, queue] = await sent({ body: "mine" });
    const message = await receiveOne(receiver);
    assert.match(message.lockToken, /^[0-9a-f-]{36}$/);
    const left = message.lockedUntilUtc - Date.now();
    assert.ok(left > 40_000 && left <= 60_100, `locked for ${left} ms`);
    assert.deepEqual(await receiveNothing(client.createReceiver(queue)), []);
  });

  it("redelivers an abandoned message with changed properties", async () => {
    const [receiver] = await sent({ body: "again", applicationProperties: { kept: "as sent", changed: 1 } });
    await receiver.abandonMessage(await receiveOne(receiver), { changed: 2, added: "later", flag: true });
    const again = await receiveOne(receiver);
    assert.equal(again.body, "again");
    assert.equal(again.deliveryCount, 1);
    assert.deepEqual(again.applicationProperties, { kept: "as sent", changed: 2, added: "later", flag: true });
    await receiver.abandonMessage(again);
    assert.equal((await receiveOne(receiver)).deliveryCount, 2);
  });

  it("returns a deferred message only by its sequence number", async () => {
    const [receiver] = await sent([{ body: "first" }, { body: "second" }]);
    const first = await receiveOne(receiver);
    await receiver.deferMessage(first, { why: "too early" });
    const second = await receiveOne(receiver);
    assert.equal(second.body, "second");
    await receiver.completeMessage(second);
    assert.deepEqual(await receiveNothing(receiver), []);
    assert.equal((await peekAll(receiver))[0].state, "deferred");

    const [deferred] = await receiver.receiveDeferredMessages(first.sequenceNumber);
    assert.deepEqual([deferred.body, deferred.state], ["first", "deferred"]);
    assert.equal(deferred.applicationProperties.why, "too early");
    assert.match(deferred.lockToken, /^[0-9a-f-]{36}$/);
    await receiver.completeMessage(deferred);
    assert.deepEqual(await peekAll(receiver), []);
  });

  it("settles deferred messages in every way", async () => {
    const [receiver, queue] = await sent(["a", "b", "c", "d"].map((body) => ({ body })));
    const messages = await receive(receiver, 4);
    await Promise.all(messages.map((message) => receiver.deferMessage(message)));
    const numbers = messages.map((message) => message.sequenceNumber);
    const [a, b, c, d] = await receiver.receiveDeferredMessages(numbers);
    assert.deepEqual(bodies([a, b, c, d]), ["a", "b", "c", "d"]);
    await receiver.completeMessage(a);
    await receiver.abandonMessage(b, { tried: 1 });
    await receiver.deferMessage(c, { tried: 2 });
    const options = { deadLetterReason: "no use", deadLetterErrorDescription: "none at all", tried: 3 };
    await receiver.deadLetterMessage(d, options);

    const left = await receiver.receiveDeferredMessages(numbers.slice(1, 3));
    assert.deepEqual(left.map((message) => [message.body, message.applicationProperties.tried]), [["b", 1], ["c", 2]]);
    const dead = await receiveOne(client.createReceiver(queue, { subQueueType: "deadLetter" }));
    assert.deepEqual([dead.body, dead.deadLetterReason], ["d", "no use"]);
    assert.equal(dead.deadLetterErrorDescription, "none at all");
    assert.equal(dead.applicationProperties.tried, 3);
  });

  it("receives and deletes deferred messages", async () => {
    const [receiver, queue] = await sent({ body: "once" });
    const message = await receiveOne(receiver);
    await receiver.deferMessage(message);
    const deleting = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
    assert.deepEqual(bodies(await deleting.receiveDeferredMessages(message.sequenceNumber)), ["once"]);
    await assert.rejects(deleting.receiveDeferredMessages(message.sequenceNumber), { code: "MessageNotFound" });
  });

  it("does not find a deferred message with an unknown sequence number", async () => {
    const [receiver] = await sent({ body: "active" });
    for (const number of [1, 4711]) {
      await assert.rejects(receiver.receiveDeferredMessages(sequenceNumber(number)), { code: "MessageNotFound" });
    }
  });

  it("moves a dead-lettered message with its reason, description and properties", async () => {
    const [receiver, queue] = await sent({ body: "bad", messageId: "bad 1", applicationProperties: { kept: 1 } });
    const message = await receiveOne(receiver);
    const options = { deadLetterReason: "unreadable", deadLetterErrorDescription: "byte 7 is odd", tried: 3 };
    await receiver.deadLetterMessage(message, options);
    assert.deepEqual(await peekAll(receiver), []);
    const dead = await receiveOne(client.createReceiver(queue, { subQueueType: "deadLetter" }));
    assert.deepEqual([dead.body, dead.messageId], ["bad", "bad 1"]);
    assert.equal(dead.deadLetterReason, "unreadable");
    assert.equal(dead.deadLetterErrorDescription, "byte 7 is odd");
    assert.equal(dead.applicationProperties.kept, 1);
    assert.equal(dead.applicationProperties.tried, 3);
  });

  it("dead-letters a message without a reason", async () => {
    const [receiver, queue] = await sent({ body: "bad" });
    await receiver.deadLetterMessage(await receiveOne(receiver));
    const dead = await receiveOne(client.createReceiver(queue, { subQueueType: "deadLetter" }));
    assert.equal(dead.body, "bad");
    assert.equal(dead.deadLetterReason, undefined);
  });

  it("settles a message after its receiver was closed", async () => {
    const [receiver, queue] = await sent({ body: "kept" });
    const message = await receiveOne(receiver);
    await receiver.close();
    const other = client.createReceiver(queue);
    await other.completeMessage(message);
    assert.deepEqual(await peekAll(other), []);
  });

  it("refuses to settle a message twice", async () => {
    const [receiver] = await sent({ body: "once" });
    const message = await receiveOne(receiver);
    await receiver.completeMessage(message);
    await assert.rejects(receiver.completeMessage(message), /already.*settled|settled already/i);
  });
});
