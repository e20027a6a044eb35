// Peeking returns messages in every state, and changes nothing.

import assert from "node:assert/strict";
import { it } from "node:test";
import { behaviour, bodies, connect, inSeconds, makeQueue, plain, receiveOne, sequenceNumber } from "./bus.js";

behaviour("peeking", () => {
  const client = connect(plain);

  async function sent(count, options) {
    const queue = await makeQueue(options);
    const messages = Array.from({ length: count }, (_, body) => ({ body, sessionId: `${body % 2}` }));
    await client.createSender(queue).sendMessages(messages);
    return queue;
  }

  it("continues after the previous peek, and starts at a given sequence number", async () => {
    const receiver = client.createReceiver(await sent(10));
    assert.deepEqual(bodies(await receiver.peekMessages(4)), [0, 1, 2, 3]);
    assert.deepEqual(bodies(await receiver.peekMessages(4)), [4, 5, 6, 7]);
    assert.deepEqual(bodies(await receiver.peekMessages(4)), [8, 9]);
    assert.deepEqual(await receiver.peekMessages(4), []);
    assert.deepEqual(bodies(await receiver.peekMessages(2, { fromSequenceNumber: sequenceNumber(6) })), [5, 6]);
  });

  it("does not lock messages or change their delivery count", async () => {
    const queue = await sent(1);
    const [peeked] = await client.createReceiver(queue).peekMessages(1);
    assert.equal(peeked.lockToken, undefined);
    assert.equal(peeked.deliveryCount, 0);
    assert.equal((await receiveOne(client.createReceiver(queue))).deliveryCount, 0);
  });

  it("returns active, locked, deferred and scheduled messages", async () => {
    const queue = await sent(3);
    const receiver = client.createReceiver(queue);
    await receiver.deferMessage(await receiveOne(receiver));
    await receiveOne(receiver);
    await client.createSender(queue).scheduleMessages({ body: "later" }, inSeconds(3600));
    const seen = await receiver.peekMessages(10);
    assert.deepEqual(
      seen.map(({ body, state }) => [body, state]),
      [[0, "deferred"], [1, "active"], [2, "active"], ["later", "scheduled"]],
    );
  });

  it("returns nothing for an empty queue", async () => {
    assert.deepEqual(await client.createReceiver(await makeQueue()).peekMessages(5), []);
  });

  it("returns only the messages of a session", async () => {
    const queue = await sent(6, { requiresSession: true });
    const receiver = await client.acceptSession(queue, "1");
    assert.deepEqual(bodies(await receiver.peekMessages(10)), [1, 3, 5]);
    await receiver.close();
  });

  it("returns many large messages page by page", async () => {
    const queue = await makeQueue();
    const sender = client.createSender(queue);
    for (let number = 0; number < 6; number += 1) {
      await sender.sendMessages({ body: Buffer.alloc(100_000, number) });
    }
    const receiver = client.createReceiver(queue);
    const seen = [];
    for (let page; (page = await receiver.peekMessages(100)).length > 0; ) {
      seen.push(...page.map((message) => message.body[0]));
    }
    assert.deepEqual(seen, [0, 1, 2, 3, 4, 5]);
  });
});
