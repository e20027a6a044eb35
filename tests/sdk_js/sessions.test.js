// Sessions: one receiver at a time, messages in order, and session states.

import assert from "node:assert/strict";
import { it } from "node:test";
import {
  administration, behaviour, bodies, connect, makeQueue, makeTopic, pause, peekAll, receive, receiveNothing,
  receiveOne, tls, until,
} from "./bus.js";

behaviour("sessions", () => {
  const client = connect(tls);
  // A free session is accepted at once; for other sessions the SDK would wait for its whole operation timeout.
  const shortTimeoutClient = connect(tls, { retryOptions: { maxRetries: 0, timeoutInMs: 1_500 } });

  async function sent(...messages) {
    const queue = await makeQueue({ requiresSession: true, lockDuration: "PT5S" });
    for (const [sessionId, body] of messages) {
      await client.createSender(queue).sendMessages({ sessionId, body });
    }
    return queue;
  }

  it("delivers only a session's messages, in order", async () => {
    const queue = await sent(["a", 1], ["b", 2], ["a", 3], ["b", 4], ["a", 5]);
    const receiver = await client.acceptSession(queue, "a");
    assert.equal(receiver.sessionId, "a");
    const messages = await receive(receiver, 3);
    assert.deepEqual(bodies(messages), [1, 3, 5]);
    assert.ok(messages.every((message) => message.sessionId === "a"));
    for (const message of messages) {
      await receiver.completeMessage(message);
    }
    assert.deepEqual(await receiveNothing(receiver), []);
    await receiver.close();
  });

  it("locks a session for the lock duration", async () => {
    const receiver = await client.acceptSession(await sent(["a", 1]), "a");
    const left = receiver.sessionLockedUntilUtc - Date.now();
    assert.ok(left > 2_000 && left <= 5_100, `locked for ${left} ms`);
    await receiver.close();
  });

  it("gives each next available session to one receiver", async () => {
    const queue = await sent(["a", 1], ["b", 2], ["c", 3]);
    const receivers = await Promise.all([1, 2, 3].map(() => client.acceptNextSession(queue)));
    assert.deepEqual(receivers.map((receiver) => receiver.sessionId).sort(), ["a", "b", "c"]);
    for (const receiver of receivers) {
      assert.equal((await receiveOne(receiver)).sessionId, receiver.sessionId);
      await receiver.close();
    }
  });

  it("waits for a session whose first message arrives later", async () => {
    const queue = await sent();
    const accepted = client.acceptNextSession(queue);
    await pause(200);
    await client.createSender(queue).sendMessages({ sessionId: "late", body: "here" });
    const receiver = await accepted;
    assert.equal(receiver.sessionId, "late");
    assert.equal((await receiveOne(receiver)).body, "here");
    await receiver.close();
  });

  it("times out when no session is available", async () => {
    await assert.rejects(shortTimeoutClient.acceptNextSession(await sent()), { code: "ServiceTimeout" });
  });

  it("refuses a session that another receiver holds, until it is closed", async () => {
    const queue = await sent(["a", 1]);
    const holder = await client.acceptSession(queue, "a");
    await assert.rejects(shortTimeoutClient.acceptSession(queue, "a"), { code: "SessionCannotBeLocked" });
    await holder.close();
    const next = await client.acceptSession(queue, "a");
    assert.deepEqual((await receiveOne(next)).deliveryCount, 0);
    await next.close();
  });

  it("accepts a session that has no messages yet", async () => {
    const queue = await sent();
    const receiver = await client.acceptSession(queue, "early");
    assert.deepEqual(await receiveNothing(receiver), []);
    await client.createSender(queue).sendMessages({ sessionId: "early", body: "here" });
    assert.equal((await receiveOne(receiver)).body, "here");
    await receiver.close();
  });

  it("stores session states of any type", async () => {
    const queue = await sent(["a", 1]);
    const receiver = await client.acceptSession(queue, "a");
    assert.equal(await receiver.getSessionState(), null);
    for (const state of ["half done", { step: 2, of: ["a", "b"] }, 42]) {
      await receiver.setSessionState(state);
      assert.deepEqual(await receiver.getSessionState(), state);
    }
    await receiver.close();
    const next = await client.acceptSession(queue, "a");
    assert.equal(await next.getSessionState(), 42);
    await next.setSessionState(null);
    assert.equal(await next.getSessionState(), null);
    await next.close();
  });

  it("settles messages of a session in every way", async () => {
    const queue = await sent(["a", 0], ["a", 1], ["a", 2], ["a", 3]);
    const receiver = await client.acceptSession(queue, "a");
    const messages = await receive(receiver, 4);
    await receiver.completeMessage(messages[0]);
    await receiver.deferMessage(messages[2]);
    await receiver.deadLetterMessage(messages[3], { deadLetterReason: "no", deadLetterErrorDescription: "never" });
    await receiver.abandonMessage(messages[1], { tried: 1 });
    const again = await receiveOne(receiver);
    assert.deepEqual([again.body, again.deliveryCount, again.applicationProperties.tried], [1, 1, 1]);
    await receiver.completeMessage(again);
    const [deferred] = await receiver.receiveDeferredMessages(messages[2].sequenceNumber);
    await receiver.completeMessage(deferred);
    assert.deepEqual(await peekAll(receiver), []);
    await receiver.close();
    const dead = await receiveOne(client.createReceiver(queue, { subQueueType: "deadLetter" }));
    assert.deepEqual([dead.body, dead.sessionId, dead.deadLetterReason], [3, "a", "no"]);
  });

  it("delivers a session's messages to a handler one by one", async () => {
    const queue = await sent(...Array.from({ length: 8 }, (_, number) => ["a", number]));
    const receiver = await client.acceptNextSession(queue);
    const seen = [];
    const subscription = receiver.subscribe({
      processMessage: async (message) => void seen.push(message.body),
      processError: async ({ error }) => void seen.push(error),
    });
    await until(() => seen.length === 8);
    await until(async () => (await peekAll(receiver)).length === 0);
    await subscription.close();
    await receiver.close();
    assert.deepEqual(seen, [0, 1, 2, 3, 4, 5, 6, 7]);
  });

  it("receives and deletes from a session", async () => {
    const queue = await sent(["a", 1], ["a", 2]);
    const receiver = await client.acceptSession(queue, "a", { receiveMode: "receiveAndDelete" });
    assert.deepEqual(bodies(await receive(receiver, 2)), [1, 2]);
    assert.deepEqual(await peekAll(receiver), []);
    await receiver.close();
  });

  it("supports sessions on a subscription", async () => {
    const topic = await makeTopic();
    await administration.createSubscription(topic, "ordered", { requiresSession: true });
    await client.createSender(topic).sendMessages([1, 2, 3].map((body) => ({ body, sessionId: `${body % 2}` })));
    const receiver = await client.acceptSession(topic, "ordered", "1");
    assert.deepEqual(bodies(await receive(receiver, 2)), [1, 3]);
    await receiver.setSessionState("seen");
    assert.equal(await receiver.getSessionState(), "seen");
    await receiver.close();
  });

  it("requires sessions only on entities with sessions", async () => {
    const [withSessions, without] = [await sent(), await makeQueue()];
    await assert.rejects(client.createSender(withSessions).sendMessages({ body: "no session" }), /session/i);
    await assert.rejects(client.createReceiver(withSessions).receiveMessages(1), /session/i);
    await assert.rejects(client.acceptSession(without, "a"), /session/i);
  });
});
