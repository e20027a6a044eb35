// Locks of messages and sessions: manual and automatic renewal, and expiry.

import assert from "node:assert/strict";
import { it } from "node:test";
import { behaviour, connect, makeQueue, pause, peekAll, plain, receiveOne } from "./bus.js";

behaviour("locks", () => {
  const client = connect(plain);

  async function sent() {
    const queue = await makeQueue({ lockDuration: "PT5S" });
    await client.createSender(queue).sendMessages({ body: "slow" });
    return queue;
  }

  it("extends a lock from the time of the renewal", async () => {
    const receiver = client.createReceiver(await sent(), { maxAutoLockRenewalDurationInMs: 0 });
    const message = await receiveOne(receiver);
    const until = message.lockedUntilUtc;
    await pause(500);
    const renewed = await receiver.renewMessageLock(message);
    assert.ok(renewed - until >= 400 && renewed - until < 3_000, `${renewed - until} ms more`);
    assert.equal(message.lockedUntilUtc.getTime(), renewed.getTime());
    await receiver.completeMessage(message);
  });

  it("keeps a message locked past its lock duration by manual renewal", async () => {
    const receiver = client.createReceiver(await sent(), { maxAutoLockRenewalDurationInMs: 0 });
    const message = await receiveOne(receiver);
    for (let time = 0; time < 2; time += 1) {
      await pause(3_000);
      await receiver.renewMessageLock(message);
    }
    await receiver.completeMessage(message);
    assert.deepEqual(await peekAll(receiver), []);
  });

  it("keeps a message locked past its lock duration by automatic renewal", async () => {
    const receiver = client.createReceiver(await sent(), { maxAutoLockRenewalDurationInMs: 60_000 });
    const message = await receiveOne(receiver);
    await pause(6_000);
    await receiver.completeMessage(message);
    assert.deepEqual(await peekAll(receiver), []);
  });

  it("renews the lock of a deferred message", async () => {
    const receiver = client.createReceiver(await sent());
    const message = await receiveOne(receiver);
    await receiver.deferMessage(message);
    const [deferred] = await receiver.receiveDeferredMessages(message.sequenceNumber);
    const until = deferred.lockedUntilUtc;
    await pause(300);
    assert.ok((await receiver.renewMessageLock(deferred)) > until);
    await receiver.completeMessage(deferred);
  });

  it("refuses to renew an expired lock", async () => {
    const receiver = client.createReceiver(await sent(), { maxAutoLockRenewalDurationInMs: 0 });
    const message = await receiveOne(receiver);
    await pause(5_300);
    await assert.rejects(receiver.renewMessageLock(message), { code: "MessageLockLost" });
  });

  it("refuses to settle a message with an expired lock, and redelivers it", async () => {
    const receiver = client.createReceiver(await sent(), { maxAutoLockRenewalDurationInMs: 0 });
    const message = await receiveOne(receiver);
    await pause(5_300);
    await assert.rejects(receiver.completeMessage(message), { code: "MessageLockLost" });
    const again = await receiveOne(receiver);
    assert.deepEqual([again.body, again.deliveryCount], ["slow", 1]);
    await receiver.completeMessage(again);
  });

  async function sentToSession() {
    const queue = await makeQueue({ requiresSession: true, lockDuration: "PT5S" });
    await client.createSender(queue).sendMessages({ sessionId: "a", body: 1 });
    return queue;
  }

  it("keeps a session locked past its lock duration by renewal", async () => {
    const receiver = await client.acceptSession(await sentToSession(), "a", { maxAutoLockRenewalDurationInMs: 0 });
    const before = receiver.sessionLockedUntilUtc;
    const message = await receiveOne(receiver);
    await pause(3_000);
    const renewed = await receiver.renewSessionLock();
    assert.ok(renewed - before >= 2_500, `${renewed - before} ms more`);
    assert.equal(receiver.sessionLockedUntilUtc.getTime(), renewed.getTime());
    await pause(3_000);
    await receiver.completeMessage(message);
    await receiver.close();
  });

  it("releases a session when its lock expires", async () => {
    const queue = await sentToSession();
    const receiver = await client.acceptSession(queue, "a", { maxAutoLockRenewalDurationInMs: 0 });
    const message = await receiveOne(receiver);
    await pause(5_500);
    await assert.rejects(receiver.completeMessage(message), { code: "SessionLockLost" });
    await assert.rejects(receiver.renewSessionLock(), { code: "SessionLockLost" });
    const next = await client.acceptSession(queue, "a");
    const again = await receiveOne(next);
    assert.deepEqual([again.body, again.deliveryCount], [1, 1]);
    await Promise.all([receiver.close(), next.close()]);
  });
});
