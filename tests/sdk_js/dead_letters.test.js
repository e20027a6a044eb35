// Dead-letter queues of queues and subscriptions: how messages get there, and how they are received and settled.

import assert from "node:assert/strict";
import { it } from "node:test";
import {
  administration, behaviour, bodies, connect, makeQueue, makeSubscription, peekAll, plain, receive, receiveNothing,
  receiveOne,
} from "./bus.js";

const subQueueType = "deadLetter";

behaviour("dead letters", () => {
  const client = connect(plain);

  it("gets a message that exceeded its delivery count", async () => {
    const queue = await makeQueue({ maxDeliveryCount: 2 });
    await client.createSender(queue).sendMessages({ body: "stubborn" });
    const receiver = client.createReceiver(queue);
    await receiver.abandonMessage(await receiveOne(receiver));
    await receiver.abandonMessage(await receiveOne(receiver));
    const dead = await receiveOne(client.createReceiver(queue, { subQueueType }));
    assert.deepEqual([dead.body, dead.deadLetterReason], ["stubborn", "MaxDeliveryCountExceeded"]);
    assert.match(dead.deadLetterErrorDescription, /\S/);
    assert.deepEqual(await receiveNothing(receiver), []);
  });

  it("gets an expired message if dead-lettering on expiration is enabled", async () => {
    const queue = await makeQueue({ deadLetteringOnMessageExpiration: true });
    await client.createSender(queue).sendMessages({ body: "late", timeToLive: 500 });
    const dead = await receiveOne(client.createReceiver(queue, { subQueueType }));
    assert.deepEqual([dead.body, dead.deadLetterReason], ["late", "TTLExpiredException"]);
  });

  it("does not get an expired message if dead-lettering on expiration is disabled", async () => {
    const queue = await makeQueue();
    await client.createSender(queue).sendMessages([{ body: "over", timeToLive: 1 }, { body: "lasting" }]);
    assert.equal((await receiveOne(client.createReceiver(queue))).body, "lasting");
    assert.deepEqual(await peekAll(client.createReceiver(queue, { subQueueType })), []);
  });

  it("supports every way to receive and settle", async () => {
    const [topic, name] = await makeSubscription();
    await client.createSender(topic).sendMessages([0, 1, 2, 3].map((body) => ({ body })));
    const receiver = client.createReceiver(topic, name);
    for (const message of await receive(receiver, 4)) {
      await receiver.deadLetterMessage(message, { deadLetterReason: `reason ${message.body}` });
    }
    const counts = await administration.getSubscriptionRuntimeProperties(topic, name);
    assert.deepEqual([counts.activeMessageCount, counts.deadLetterMessageCount], [0, 4]);

    const dead = client.createReceiver(topic, name, { subQueueType });
    assert.deepEqual(bodies(await peekAll(dead)), [0, 1, 2, 3]);
    const [first, second] = await receive(dead, 2);
    assert.deepEqual([first.deadLetterReason, second.deadLetterReason], ["reason 0", "reason 1"]);
    assert.ok((await dead.renewMessageLock(first)) instanceof Date);
    await dead.completeMessage(first);
    await dead.deferMessage(second);
    const [deferred] = await dead.receiveDeferredMessages(second.sequenceNumber);
    await dead.completeMessage(deferred);
    await dead.abandonMessage(await receiveOne(dead));
    const deleting = client.createReceiver(topic, name, { subQueueType, receiveMode: "receiveAndDelete" });
    assert.deepEqual(bodies(await receive(deleting, 2)), [2, 3]);
    assert.deepEqual(await peekAll(dead), []);
  });

  it("allows a dead letter to be sent again", async () => {
    const queue = await makeQueue();
    const sender = client.createSender(queue);
    await sender.sendMessages({ body: "second chance", subject: "kept" });
    const receiver = client.createReceiver(queue);
    await receiver.deadLetterMessage(await receiveOne(receiver));
    const dead = client.createReceiver(queue, { subQueueType });
    const message = await receiveOne(dead);
    await sender.sendMessages({ body: message.body, subject: message.subject });
    await dead.completeMessage(message);
    const again = await receiveOne(receiver);
    assert.deepEqual([again.body, again.subject, again.deadLetterReason], ["second chance", "kept", undefined]);
  });

  it("forwards dead letters with their dead letter source", async () => {
    const target = await makeQueue();
    const source = await makeQueue({ forwardDeadLetteredMessagesTo: target });
    await client.createSender(source).sendMessages({ body: "bad" });
    const receiver = client.createReceiver(source);
    await receiver.deadLetterMessage(await receiveOne(receiver), { deadLetterReason: "because" });
    const message = await receiveOne(client.createReceiver(target));
    assert.deepEqual([message.body, message.deadLetterReason], ["bad", "because"]);
    assert.equal(message.deadLetterSource, source);
  });
});
