// Queues over HTTP: create, get, update, delete and list.

import assert from "node:assert/strict";
import { it } from "node:test";
import { administration, all, behaviour, connect, inSeconds, makeQueue, newName, plain, receiveOne } from "./bus.js";

const forever = "P10675199DT2H48M5.4775807S";

behaviour("administration of queues", () => {
  const client = connect(plain);

  it("creates a queue with the service's defaults", async () => {
    const name = newName("queue");
    const { _response, authorizationRules, ...queue } = await administration.createQueue(name);
    assert.equal(_response.status, 201);
    assert.ok(authorizationRules === undefined || authorizationRules.length === 0);
    assert.deepEqual(queue, {
      name,
      lockDuration: "PT1M",
      maxSizeInMegabytes: queue.maxSizeInMegabytes,
      maxMessageSizeInKilobytes: queue.maxMessageSizeInKilobytes,
      requiresDuplicateDetection: false,
      requiresSession: false,
      defaultMessageTimeToLive: forever,
      deadLetteringOnMessageExpiration: false,
      duplicateDetectionHistoryTimeWindow: "PT10M",
      maxDeliveryCount: 10,
      enableBatchedOperations: true,
      status: "Active",
      forwardTo: undefined,
      userMetadata: queue.userMetadata,
      autoDeleteOnIdle: forever,
      enablePartitioning: false,
      forwardDeadLetteredMessagesTo: undefined,
      enableExpress: false,
      availabilityStatus: "Available",
    });
    assert.ok(queue.maxSizeInMegabytes >= 1024);
  });

  it("creates a queue with the given properties", async () => {
    const described = {
      lockDuration: "PT45S",
      maxSizeInMegabytes: 2048,
      requiresDuplicateDetection: true,
      requiresSession: true,
      defaultMessageTimeToLive: "P2D",
      deadLetteringOnMessageExpiration: true,
      duplicateDetectionHistoryTimeWindow: "PT2M",
      maxDeliveryCount: 3,
      enableBatchedOperations: false,
      status: "SendDisabled",
      userMetadata: "for <orders> & \"more\" ☕",
      autoDeleteOnIdle: "PT1H",
    };
    const name = newName("queue");
    const made = await administration.createQueue(name, described);
    const shown = await administration.getQueue(name);
    for (const [property, value] of Object.entries(described)) {
      assert.deepEqual([made[property], shown[property]], [value, value], property);
    }
  });

  it("stores the authorization rules of a queue", async () => {
    const rule = {
      claimType: "SharedAccessKey",
      keyName: "reader",
      accessRights: ["Listen"],
      primaryKey: Buffer.alloc(32, 1).toString("base64"),
      secondaryKey: Buffer.alloc(32, 2).toString("base64"),
    };
    const name = await makeQueue({ authorizationRules: [rule] });
    const { authorizationRules } = await administration.getQueue(name);
    assert.equal(authorizationRules.length, 1);
    for (const [property, value] of Object.entries(rule)) {
      assert.deepEqual(authorizationRules[0][property], value, property);
    }
  });

  it("forwards by the name of another queue", async () => {
    const [target, dead] = [await makeQueue(), await makeQueue()];
    const name = await makeQueue({ forwardTo: target, forwardDeadLetteredMessagesTo: dead });
    const { forwardTo, forwardDeadLetteredMessagesTo } = await administration.getQueue(name);
    assert.ok(forwardTo.endsWith(`/${target}`), forwardTo);
    assert.ok(forwardDeadLetteredMessagesTo.endsWith(`/${dead}`), forwardDeadLetteredMessagesTo);
    await client.createSender(name).sendMessages({ body: "onwards" });
    assert.equal((await receiveOne(client.createReceiver(target))).body, "onwards");
  });

  it("updates a queue", async () => {
    const name = await makeQueue();
    const queue = await administration.getQueue(name);
    Object.assign(queue, { lockDuration: "PT30S", maxDeliveryCount: 7, userMetadata: "changed", status: "Disabled" });
    const changed = await administration.updateQueue(queue);
    const shown = await administration.getQueue(name);
    for (const updated of [changed, shown]) {
      const properties = [updated.lockDuration, updated.maxDeliveryCount, updated.userMetadata, updated.status];
      assert.deepEqual(properties, ["PT30S", 7, "changed", "Disabled"]);
    }
  });

  it("refuses to change properties fixed at creation", async () => {
    const queue = await administration.getQueue(await makeQueue());
    const refused = { name: "RestError", statusCode: 400 };
    await assert.rejects(administration.updateQueue({ ...queue, requiresSession: true }), refused);
    await assert.rejects(administration.updateQueue({ ...queue, lockDuration: "P25D" }), refused);
    assert.equal((await administration.getQueue(queue.name)).requiresSession, false);
  });

  it("reports whether a queue exists", async () => {
    const name = newName("queue");
    assert.equal(await administration.queueExists(name), false);
    await administration.createQueue(name);
    assert.equal(await administration.queueExists(name), true);
    assert.equal((await administration.deleteQueue(name))._response.status, 200);
    assert.equal(await administration.queueExists(name), false);
  });

  it("reports errors with their codes", async () => {
    const name = await makeQueue();
    const exists = { code: "MessageEntityAlreadyExistsError", statusCode: 409 };
    const missing = { code: "MessageEntityNotFoundError" };
    await assert.rejects(administration.createQueue(name), exists);
    await assert.rejects(administration.createTopic(name), exists);
    const queue = await administration.getQueue(name);
    await administration.deleteQueue(name);
    await assert.rejects(administration.getQueue(name), missing);
    await assert.rejects(administration.getQueueRuntimeProperties(name), missing);
    await assert.rejects(administration.deleteQueue(name), missing);
    await assert.rejects(administration.updateQueue(queue), missing);
    await assert.rejects(administration.createQueue("not a name!"), { code: "ServiceError", statusCode: 400 });
    await assert.rejects(administration.createQueue(name, { maxDeliveryCount: 0 }), { statusCode: 400 });
  });

  it("counts messages by their state", async () => {
    const name = await makeQueue();
    const sender = client.createSender(name);
    await sender.sendMessages([{ body: 1 }, { body: 2 }, { body: 3 }]);
    await sender.scheduleMessages([{ body: 4 }, { body: 5 }], inSeconds(3600));
    const receiver = client.createReceiver(name);
    await receiver.deadLetterMessage(await receiveOne(receiver));
    const found = await administration.getQueueRuntimeProperties(name);
    assert.equal(found.name, name);
    assert.equal(found.activeMessageCount, 2);
    assert.equal(found.deadLetterMessageCount, 1);
    assert.equal(found.scheduledMessageCount, 2);
    assert.equal(found.transferMessageCount, 0);
    assert.equal(found.transferDeadLetterMessageCount, 0);
    assert.equal(found.totalMessageCount, 5);
    assert.ok(found.sizeInBytes > 0);
    for (const instant of [found.createdAt, found.modifiedAt, found.accessedAt]) {
      assert.ok(Math.abs(instant - Date.now()) < 30_000, `${instant}`);
    }
  });

  it("lists queues and their message counts", async () => {
    const names = [await makeQueue(), await makeQueue({ maxDeliveryCount: 4 })];
    await client.createSender(names[0]).sendMessages({ body: "counted" });
    const queues = await all(administration.listQueues());
    const described = queues.filter(({ name }) => names.includes(name));
    const found = described.map(({ name, maxDeliveryCount }) => [name, maxDeliveryCount]);
    assert.deepEqual(found, [[names[0], 10], [names[1], 4]]);
    const runtimes = await all(administration.listQueuesRuntimeProperties());
    const counted = runtimes.filter(({ name }) => names.includes(name));
    assert.deepEqual(counted.map(({ activeMessageCount }) => activeMessageCount), [1, 0]);
  });
});
