// Partitioned queues and topics: clients use their sixteen fragments as one entity.

import assert from "node:assert/strict";
import { it } from "node:test";
import {
  administration, behaviour, bodies, connect, inSeconds, makeQueue, makeTopic, peekAll, receive, receiveNothing, tls,
} from "./bus.js";

const FRAGMENTS = 16;
// Partition keys and their fragments, as docs/partitioning.md lists them.
const KEYS = { a: 15, 0: 5, 1: 6, contoso: 0, "order-17": 0, "session 1": 13 };

const fragmentOf = (message) => message.sequenceNumber.shiftRightUnsigned(48).toNumber();
const sorted = (values) => [...values].sort((one, other) => one - other);
const range = (count) => Array.from({ length: count }, (_, number) => number);

behaviour("partitioned entities", () => {
  const client = connect(tls);

  async function partitioned(options) {
    const queue = await makeQueue({ enablePartitioning: true, ...options });
    return [queue, client.createSender(queue), client.createReceiver(queue)];
  }

  it("are created and returned as partitioned, with sixteen times the size", async () => {
    const [queue] = await partitioned({ maxSizeInMegabytes: 2048 });
    const found = await administration.getQueue(queue);
    assert.deepEqual([found.enablePartitioning, found.maxSizeInMegabytes], [true, 16 * 2048]);
    const topic = await makeTopic({ enablePartitioning: true });
    assert.equal((await administration.getTopic(topic)).enablePartitioning, true);
    await assert.rejects(administration.updateQueue({ ...found, enablePartitioning: false }), { statusCode: 400 });
  });

  it("keep messages of a key in one fragment, in order", async () => {
    const [, sender, receiver] = await partitioned();
    for (const body of range(3)) {
      for (const partitionKey of Object.keys(KEYS)) {
        await sender.sendMessages({ body, partitionKey });
      }
    }
    const messages = await receive(receiver, 3 * Object.keys(KEYS).length);
    for (const [key, fragment] of Object.entries(KEYS)) {
      const found = messages.filter((message) => message.partitionKey === key);
      assert.deepEqual(bodies(found), [0, 1, 2]);
      assert.deepEqual(found.map(fragmentOf), [fragment, fragment, fragment]);
    }
    for (const message of messages) {
      await receiver.completeMessage(message);
    }
    assert.deepEqual(await peekAll(receiver), []);
  });

  it("spread messages without a key over all fragments in turn", async () => {
    const [, sender, receiver] = await partitioned();
    for (const body of range(FRAGMENTS)) {
      await sender.sendMessages({ body });
    }
    assert.deepEqual(sorted((await receive(receiver, FRAGMENTS)).map(fragmentOf)), range(FRAGMENTS));
  });

  it("store a batch without keys in one fragment, and a batch with keys by its keys", async () => {
    const [, sender, receiver] = await partitioned();
    const batch = await sender.createMessageBatch();
    assert.ok(range(5).every((body) => batch.tryAddMessage({ body })));
    await sender.sendMessages(batch);
    assert.equal(new Set((await receive(receiver, 5)).map(fragmentOf)).size, 1);
    await sender.sendMessages(Object.keys(KEYS).map((key) => ({ body: key, partitionKey: key })));
    for (const message of await receive(receiver, Object.keys(KEYS).length)) {
      assert.equal(fragmentOf(message), KEYS[message.body]);
    }
  });

  it("settle messages of all fragments in every way", async () => {
    const [queue, sender, receiver] = await partitioned();
    await sender.sendMessages(range(FRAGMENTS).map((body) => ({ body, partitionKey: `${body}` })));
    const messages = await receive(receiver, FRAGMENTS);
    const [done, again, aside, dead] = range(4).map((start) => messages.filter((_, at) => at % 4 === start));
    for (const message of done) {
      await receiver.completeMessage(message);
    }
    for (const message of again) {
      await receiver.abandonMessage(message);
    }
    for (const message of aside) {
      await receiver.deferMessage(message);
    }
    for (const message of dead) {
      await receiver.deadLetterMessage(message, { deadLetterReason: "no" });
    }
    const onceMore = await receive(receiver, 4);
    assert.deepEqual(sorted(bodies(onceMore)), sorted(bodies(again)));
    assert.ok(onceMore.every((message) => message.deliveryCount === 1));
    const deferred = await receiver.receiveDeferredMessages(aside.map((message) => message.sequenceNumber));
    assert.deepEqual(sorted(bodies(deferred)), sorted(bodies(aside)));
    for (const message of [...onceMore, ...deferred]) {
      await receiver.renewMessageLock(message);
      await receiver.completeMessage(message);
    }
    assert.deepEqual(await peekAll(receiver), []);
    const deadLetters = await receive(client.createReceiver(queue, { subQueueType: "deadLetter" }), 4);
    assert.deepEqual(sorted(bodies(deadLetters)), sorted(bodies(dead)));
  });

  it("are peeked in order of enqueued time, page by page", async () => {
    const [, sender, receiver] = await partitioned();
    for (const body of range(12)) {
      await sender.sendMessages({ body, partitionKey: `${body % 5}` });
    }
    const peeked = [];
    for (let page = await receiver.peekMessages(5); page.length > 0; page = await receiver.peekMessages(5)) {
      peeked.push(...page);
    }
    assert.deepEqual(sorted(bodies(peeked)), range(12));
    const times = peeked.map((message) => message.enqueuedTimeUtc.getTime());
    assert.deepEqual(times, sorted(times));
  });

  it("schedule messages in several fragments and cancel them", async () => {
    const [, sender, receiver] = await partitioned();
    const keyed = Object.keys(KEYS).map((key) => ({ body: key, partitionKey: key }));
    const numbers = await sender.scheduleMessages(keyed, inSeconds(3600));
    assert.deepEqual(
      numbers.map((number) => number.shiftRightUnsigned(48).toNumber()), Object.keys(KEYS).map((key) => KEYS[key]),
    );
    await sender.cancelScheduledMessages(numbers.slice(1));
    assert.deepEqual(bodies(await peekAll(receiver)), [keyed[0].body]);
    await sender.scheduleMessages({ body: "soon" }, inSeconds(0.5));
    assert.deepEqual(bodies(await receive(receiver, 1)), ["soon"]);
  });

  it("serve named and next available sessions, each in its fragment", async () => {
    const [queue, sender] = await partitioned({ requiresSession: true });
    const sessions = ["a", "session 1"];
    await sender.sendMessages(range(6).map((body) => ({ body, sessionId: sessions[body % 2] })));
    const named = await client.acceptSession(queue, "session 1");
    const found = await receive(named, 3);
    assert.deepEqual([bodies(found), found.map(fragmentOf)], [[1, 3, 5], [13, 13, 13]]);
    await named.setSessionState("packed");
    assert.equal(await named.getSessionState(), "packed");
    const free = await client.acceptNextSession(queue);
    assert.deepEqual([free.sessionId, bodies(await receive(free, 3))], ["a", [0, 2, 4]]);
    await named.close();
    await free.close();
  });

  it("drop duplicates if duplicate detection is enabled", async () => {
    const [, sender, receiver] = await partitioned({ requiresDuplicateDetection: true });
    for (const messageId of [..."abcabc"]) {
      await sender.sendMessages({ body: messageId, messageId });
    }
    assert.deepEqual(bodies(await receive(receiver, 3)).sort(), ["a", "b", "c"]);
    assert.deepEqual(await receiveNothing(receiver), []);
  });

  it("publish to the subscriptions of a partitioned topic", async () => {
    const topic = await makeTopic({ enablePartitioning: true });
    await administration.createSubscription(topic, "all");
    await administration.createSubscription(topic, "some", {
      defaultRuleOptions: { name: "few", filter: { applicationProperties: { kind: "few" } } },
    });
    const sender = client.createSender(topic);
    await sender.sendMessages(range(FRAGMENTS).map((body) => ({
      body, partitionKey: `${body}`, applicationProperties: { kind: body < 4 ? "few" : "many" },
    })));
    const all = client.createReceiver(topic, "all");
    const messages = await receive(all, FRAGMENTS);
    assert.deepEqual(sorted(bodies(messages)), range(FRAGMENTS));
    assert.ok(new Set(messages.map(fragmentOf)).size > 4);
    for (const message of messages) {
      await all.completeMessage(message);
    }
    assert.deepEqual(await peekAll(all), []);
    const some = client.createReceiver(topic, "some", { receiveMode: "receiveAndDelete" });
    assert.deepEqual(sorted(bodies(await receive(some, 4))), range(4));
  });

  it("refuse a partition key that differs from the session id", async () => {
    const [, sender, receiver] = await partitioned();
    const annotated = {
      bodyType: "data", body: Buffer.from("x"),
      properties: { groupId: "apples" }, messageAnnotations: { "x-opt-partition-key": "pears" },
    }; // an AMQP message, because the SDK checks only its own message type
    await assert.rejects(sender.sendMessages(annotated), /'pears' and its session id 'apples'/);
    assert.deepEqual(await peekAll(receiver), []);
  });
});
