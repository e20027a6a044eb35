// Scheduling: a scheduled message is delivered when it is due, unless it was cancelled.

import assert from "node:assert/strict";
import { it } from "node:test";
import {
  administration, behaviour, bodies, connect, inSeconds, makeQueue, makeSubscription, peekAll, receive,
  receiveNothing, receiveOne, sequenceNumber, tls,
} from "./bus.js";

behaviour("scheduling", () => {
  const client = connect(tls);

  it("delivers a scheduled message when it is due", async () => {
    const queue = await makeQueue();
    const due = inSeconds(1);
    const [number] = await client.createSender(queue).scheduleMessages({ body: "later" }, due);
    const receiver = client.createReceiver(queue);
    const [waiting] = await peekAll(receiver);
    assert.deepEqual([waiting.state, waiting.body], ["scheduled", "later"]);
    assert.ok(waiting.sequenceNumber.equals(number));
    const message = await receiveOne(receiver);
    assert.ok(Date.now() >= due.getTime() - 50, "it came too early");
    assert.deepEqual([message.state, message.body], ["active", "later"]);
    assert.equal(message.scheduledEnqueueTimeUtc.getTime(), due.getTime());
    assert.ok(message.enqueuedTimeUtc >= due);
    assert.ok(message.sequenceNumber.greaterThan(number), "it is numbered anew when it is enqueued");
  });

  it("gives the scheduled messages of a call sequence numbers in order", async () => {
    const queue = await makeQueue();
    const messages = ["a", "b", "c"].map((body) => ({ body }));
    const numbers = await client.createSender(queue).scheduleMessages(messages, inSeconds(3600));
    const waiting = await peekAll(client.createReceiver(queue));
    assert.deepEqual(bodies(waiting), ["a", "b", "c"]);
    assert.deepEqual(waiting.map((message) => `${message.sequenceNumber}`), numbers.map(String));
    assert.equal((await administration.getQueueRuntimeProperties(queue)).scheduledMessageCount, 3);
  });

  it("schedules by a property of the message", async () => {
    const queue = await makeQueue();
    const sender = client.createSender(queue);
    const due = inSeconds(1);
    await sender.sendMessages([{ body: "later", scheduledEnqueueTimeUtc: due }, { body: "now" }]);
    const messages = await receive(client.createReceiver(queue, { receiveMode: "receiveAndDelete" }), 2);
    assert.deepEqual(bodies(messages), ["now", "later"]);
    assert.ok(messages[1].enqueuedTimeUtc >= due);
  });

  it("delivers a message that is already due at once", async () => {
    const queue = await makeQueue();
    await client.createSender(queue).scheduleMessages({ body: "overdue" }, inSeconds(-60));
    assert.equal((await receiveOne(client.createReceiver(queue))).body, "overdue");
  });

  it("does not deliver cancelled messages", async () => {
    const queue = await makeQueue();
    const sender = client.createSender(queue);
    const numbers = await sender.scheduleMessages([{ body: 1 }, { body: 2 }, { body: 3 }], inSeconds(1));
    await sender.cancelScheduledMessages([numbers[0], numbers[2]]);
    const receiver = client.createReceiver(queue, { receiveMode: "receiveAndDelete" });
    assert.deepEqual(bodies(await peekAll(receiver)), [2]);
    assert.equal((await receiveOne(receiver)).body, 2);
    assert.deepEqual(await receiveNothing(receiver), []);
  });

  it("refuses to cancel a message that is not scheduled", async () => {
    const sender = client.createSender(await makeQueue());
    await assert.rejects(sender.cancelScheduledMessages(sequenceNumber(123)), { code: "MessageNotFound" });
    const [number] = await sender.scheduleMessages({ body: "once" }, inSeconds(3600));
    await sender.cancelScheduledMessages(number);
    await assert.rejects(sender.cancelScheduledMessages(number), { code: "MessageNotFound" });
  });

  it("schedules and cancels messages of a topic", async () => {
    const [topic, subscription] = await makeSubscription();
    const sender = client.createSender(topic);
    const numbers = await sender.scheduleMessages([{ body: "cancelled" }, { body: "kept" }], inSeconds(1));
    assert.equal((await administration.getTopicRuntimeProperties(topic)).scheduledMessageCount, 2);
    await sender.cancelScheduledMessages(numbers[0]);
    const receiver = client.createReceiver(topic, subscription, { receiveMode: "receiveAndDelete" });
    assert.deepEqual(await peekAll(receiver), []);
    assert.equal((await receiveOne(receiver)).body, "kept");
    assert.deepEqual(await receiveNothing(receiver), []);
  });
});
