// Receive-and-delete: received messages are deleted, whatever happens to their receiver.

import assert from "node:assert/strict";
import { it } from "node:test";
import { behaviour, bodies, connect, makeQueue, peekAll, plain, receive, receiveNothing, receiveOne } from "./bus.js";

behaviour("receiving and deleting", () => {
  const client = connect(plain);

  it("removes messages as they are received", async () => {
    const queue = await makeQueue();
    await client.createSender(queue).sendMessages([{ body: 1 }, { body: 2 }, { body: 3 }]);
    const receiver = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
    assert.deepEqual(bodies(await receive(receiver, 2)), [1, 2]);
    assert.deepEqual(bodies(await peekAll(receiver)), [3]);
    await receiver.close();
    assert.deepEqual(bodies(await peekAll(client.createReceiver(queue))), [3]);
  });

  it("locks nothing, and refuses settlement", async () => {
    const queue = await makeQueue();
    await client.createSender(queue).sendMessages({ body: "gone" });
    const receiver = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
    const message = await receiveOne(receiver);
    assert.equal(message.lockToken, undefined);
    assert.equal(message.lockedUntilUtc, undefined);
    await assert.rejects(receiver.completeMessage(message), /receiveAndDelete|peekLock/i);
    await assert.rejects(receiver.renewMessageLock(message), /receiveAndDelete|peekLock/i);
  });

  it("returns the available messages if fewer arrive than requested", async () => {
    const queue = await makeQueue();
    await client.createSender(queue).sendMessages([{ body: 1 }, { body: 2 }]);
    const receiver = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
    assert.deepEqual(bodies(await receiver.receiveMessages(10, { maxWaitTimeInMs: 500 })), [1, 2]);
    assert.deepEqual(await receiveNothing(receiver), []);
  });

  it("continues with the same receiver after its credit was drained", async () => {
    const queue = await makeQueue();
    const receiver = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
    const sender = client.createSender(queue);
    for (const body of ["first", "second", "third"]) {
      assert.deepEqual(await receiver.receiveMessages(5, { maxWaitTimeInMs: 100 }), []);
      await sender.sendMessages({ body });
      assert.equal((await receiveOne(receiver)).body, body);
    }
  });

  it("delivers each of many messages once", async () => {
    const queue = await makeQueue();
    const sent = Array.from({ length: 1_000 }, (_, number) => number);
    const sender = client.createSender(queue);
    await sender.sendMessages(sent.slice(0, 500).map((body) => ({ body })));
    await sender.sendMessages(sent.slice(500).map((body) => ({ body })));
    const receiver = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
    assert.deepEqual(bodies(await receive(receiver, 1_000)), sent);
  });
});
