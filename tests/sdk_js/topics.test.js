// Topics: every subscription gets its own copy of the messages that match its rules.

import assert from "node:assert/strict";
import { it } from "node:test";
import {
  administration, behaviour, bodies, connect, makeQueue, makeSubscription, makeTopic, peekAll, plain, receive,
  receiveNothing, receiveOne,
} from "./bus.js";

behaviour("topics", () => {
  const client = connect(plain);

  it("delivers a copy to every subscription", async () => {
    const topic = await makeTopic();
    await administration.createSubscription(topic, "first");
    await administration.createSubscription(topic, "second");
    await client.createSender(topic).sendMessages([{ body: 1, messageId: "m1" }, { body: 2 }]);
    const [first, second] = ["first", "second"].map((name) => client.createReceiver(topic, name));
    const messages = await receive(first, 2);
    assert.deepEqual(bodies(messages), [1, 2]);
    assert.equal(messages[0].messageId, "m1");
    await Promise.all(messages.map((message) => first.completeMessage(message)));
    assert.deepEqual(await peekAll(first), []);
    assert.deepEqual(bodies(await peekAll(second)), [1, 2]);
  });

  it("keeps no messages for a subscription created later", async () => {
    const topic = await makeTopic();
    const sender = client.createSender(topic);
    await sender.sendMessages({ body: "nobody gets it" });
    await administration.createSubscription(topic, "late");
    await sender.sendMessages({ body: "in time" });
    assert.equal((await receiveOne(client.createReceiver(topic, "late"))).body, "in time");
  });

  it("settles a subscription's messages in every way", async () => {
    const [topic, name] = await makeSubscription();
    await client.createSender(topic).sendMessages([0, 1, 2, 3].map((body) => ({ body })));
    const receiver = client.createReceiver(topic, name);
    const messages = await receive(receiver, 4);
    await receiver.completeMessage(messages[0]);
    await receiver.deferMessage(messages[2]);
    await receiver.deadLetterMessage(messages[3], { deadLetterReason: "no", deadLetterErrorDescription: "never" });
    await receiver.abandonMessage(messages[1], { tried: 1 });
    const again = await receiveOne(receiver);
    assert.deepEqual([again.body, again.deliveryCount, again.applicationProperties.tried], [1, 1, 1]);
    await receiver.renewMessageLock(again);
    await receiver.completeMessage(again);
    const [deferred] = await receiver.receiveDeferredMessages(messages[2].sequenceNumber);
    assert.equal(deferred.body, 2);
    await receiver.completeMessage(deferred);
    assert.deepEqual(await peekAll(receiver), []);
    const dead = await receiveOne(client.createReceiver(topic, name, { subQueueType: "deadLetter" }));
    assert.deepEqual([dead.body, dead.deadLetterReason, dead.deadLetterErrorDescription], [3, "no", "never"]);
  });

  it("delivers a subscription's messages to a handler", async () => {
    const [topic, name] = await makeSubscription();
    const seen = [];
    const subscription = client.createReceiver(topic, name).subscribe({
      processMessage: async (message) => void seen.push(message.body),
      processError: async ({ error }) => void seen.push(error),
    });
    await client.createSender(topic).sendMessages([{ body: 1 }, { body: 2 }]);
    while (seen.length < 2) {
      await new Promise(setImmediate);
    }
    await subscription.close();
    assert.deepEqual(seen, [1, 2]);
  });

  it("forwards a subscription's messages to a queue", async () => {
    const queue = await makeQueue();
    const [topic, name] = await makeSubscription({ forwardTo: queue });
    await client.createSender(topic).sendMessages({ body: "onwards", subject: "kept" });
    const message = await receiveOne(client.createReceiver(queue));
    assert.deepEqual([message.body, message.subject], ["onwards", "kept"]);
    const { activeMessageCount } = await administration.getSubscriptionRuntimeProperties(topic, name);
    assert.equal(activeMessageCount, 0);
  });

  it("drops duplicates if duplicate detection is enabled", async () => {
    const topic = await makeTopic({ requiresDuplicateDetection: true });
    await administration.createSubscription(topic, "once");
    const sender = client.createSender(topic);
    await sender.sendMessages({ body: "first", messageId: "same" });
    await sender.sendMessages({ body: "second", messageId: "same" });
    const receiver = client.createReceiver(topic, "once", { receiveMode: "receiveAndDelete" });
    assert.equal((await receiveOne(receiver)).body, "first");
    assert.deepEqual(await receiveNothing(receiver), []);
  });

  it("refuses to receive from a topic, and to send to a subscription", async () => {
    const [topic, name] = await makeSubscription();
    await assert.rejects(client.createReceiver(topic).receiveMessages(1), { name: "ServiceBusError" });
    const sender = client.createSender(`${topic}/Subscriptions/${name}`);
    await assert.rejects(sender.sendMessages({ body: "x" }), { name: "ServiceBusError" });
  });
});
