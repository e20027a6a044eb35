// Sending: every kind of body and property, single messages, arrays and batches.

import assert from "node:assert/strict";
import { it } from "node:test";
import { behaviour, bodies, connect, makeQueue, plain, receive, receiveOne } from "./bus.js";

behaviour("sending", () => {
  const client = connect(plain);

  async function sendAndReceive(message, options) {
    const queue = await makeQueue();
    await client.createSender(queue).sendMessages(message);
    return receiveOne(client.createReceiver(queue, { receiveMode: "receiveAndDelete", ...options }));
  }

  it("delivers every property of a message", async () => {
    const sent = {
      body: { order: 1, lines: ["tea", "cups"] },
      messageId: "message 1",
      contentType: "application/json",
      correlationId: "correlation 1",
      partitionKey: "session 1",
      sessionId: "session 1",
      replyToSessionId: "session 2",
      timeToLive: 60_000,
      subject: "an order",
      to: "the shop",
      replyTo: "the customer",
    };
    const before = Date.now();
    const received = await sendAndReceive(sent);
    for (const [name, value] of Object.entries(sent)) {
      assert.deepEqual(received[name], value, name);
    }
    assert.equal(received.deliveryCount, 0);
    assert.equal(received.sequenceNumber.toString(), "1");
    assert.equal(received.state, "active");
    assert.ok(Math.abs(received.enqueuedTimeUtc - before) < 20_000);
    assert.equal(received.expiresAtUtc - received.enqueuedTimeUtc, 60_000);
    assert.equal(received.lockToken, undefined);
  });

  it("delivers application properties with their types", async () => {
    const applicationProperties = {
      text: "naïve ☕",
      empty: "",
      whole: 7,
      zero: 0,
      negative: -70_000,
      large: 2 ** 40,
      fraction: 0.125,
      yes: true,
      no: false,
      at: new Date("2024-02-29T12:34:56.789Z"),
      nothing: null,
    };
    const received = await sendAndReceive({ body: "x", applicationProperties }, { skipConvertingDate: true });
    assert.deepEqual(received.applicationProperties, applicationProperties);
  });

  for (const [kind, body] of [
    ["text", "hello ☕"],
    ["an empty text", ""],
    ["a number", 42.5],
    ["a boolean", true],
    ["null", null],
    ["an array", [1, "two", { three: 3 }]],
  ]) {
    it(`delivers ${kind} as the body`, async () => {
      assert.deepEqual((await sendAndReceive({ body })).body, body);
    });
  }

  it("delivers bytes as the body", async () => {
    const body = Buffer.from([0, 255, 1, 254, 0xc0, 0x80]);
    const received = await sendAndReceive({ body });
    assert.deepEqual(received.body, body);
  });

  for (const [bodyType, body] of [
    ["value", { number: 1, text: "one" }],
    ["sequence", [1, "two", [3]]],
    ["data", Buffer.from("raw")],
  ]) {
    it(`delivers an annotated AMQP message with a ${bodyType} body`, async () => {
      const received = await sendAndReceive({
        body,
        bodyType,
        properties: { messageId: "m", userId: "someone", groupSequence: 3 },
        messageAnnotations: { "x-own": "kept" },
        applicationProperties: { colour: "red" },
      });
      assert.deepEqual(received.body, body);
      const raw = received._rawAmqpMessage;
      assert.equal(raw.bodyType, bodyType);
      assert.equal(raw.properties.groupSequence, 3);
      assert.equal(raw.messageAnnotations["x-own"], "kept");
      assert.equal(received.applicationProperties.colour, "red");
    });
  }

  it("generates an id for a message without one", async () => {
    assert.match((await sendAndReceive({ body: "x" })).messageId, /\S/);
  });

  for (const messageId of [7, "seven"]) {
    it(`keeps the type of the id ${JSON.stringify(messageId)}`, async () => {
      assert.equal((await sendAndReceive({ body: "x", messageId })).messageId, messageId);
    });
  }

  it("delivers the messages of an array in order", async () => {
    const queue = await makeQueue();
    const sent = Array.from({ length: 50 }, (_, number) => ({ body: number }));
    await client.createSender(queue).sendMessages(sent);
    const received = await receive(client.createReceiver(queue, { receiveMode: "receiveAndDelete" }), 50);
    assert.deepEqual(bodies(received), bodies(sent));
    assert.deepEqual(received.map((message) => message.sequenceNumber.toNumber()), sent.map((_, index) => index + 1));
  });

  it("fills a batch to its limit, and delivers all its messages", async () => {
    const queue = await makeQueue();
    const sender = client.createSender(queue);
    const batch = await sender.createMessageBatch();
    const body = Buffer.alloc(20_000, "b");
    while (batch.tryAddMessage({ body, messageId: `${batch.count}` }));
    assert.ok(batch.count > 5, `${batch.count} fit into ${batch.maxSizeInBytes}`);
    assert.ok(batch.sizeInBytes <= batch.maxSizeInBytes);
    assert.ok(batch.sizeInBytes + body.length > batch.maxSizeInBytes);
    await sender.sendMessages(batch);
    const received = await receive(client.createReceiver(queue, { receiveMode: "receiveAndDelete" }), batch.count);
    assert.deepEqual(received.map((message) => message.messageId), Array.from(received, (_, index) => `${index}`));
    assert.ok(received.every((message) => message.body.equals(body)));
  });

  it("limits a batch to the given size", async () => {
    const batch = await client.createSender(await makeQueue()).createMessageBatch({ maxSizeInBytes: 1000 });
    assert.equal(batch.tryAddMessage({ body: Buffer.alloc(900) }), true);
    assert.equal(batch.tryAddMessage({ body: Buffer.alloc(900) }), false);
    assert.equal(batch.count, 1);
  });

  it("refuses a message that is too large", async () => {
    const queue = await makeQueue();
    const sender = client.createSender(queue);
    const { maxSizeInBytes } = await sender.createMessageBatch();
    const tooLarge = { body: Buffer.alloc(maxSizeInBytes + 1) };
    await assert.rejects(sender.sendMessages(tooLarge), { code: "MessageSizeExceeded" });
    await sender.sendMessages({ body: "the link is as it was" });
    assert.equal((await receiveOne(client.createReceiver(queue))).body, "the link is as it was");
  });
});
