// Topics and subscriptions over HTTP: create, get, update, delete and list.

import assert from "node:assert/strict";
import { it } from "node:test";
import {
  administration, all, behaviour, connect, inSeconds, makeQueue, makeSubscription, makeTopic, newName, plain,
  receiveOne, until,
} from "./bus.js";

const forever = "P10675199DT2H48M5.4775807S";
const missing = { code: "MessageEntityNotFoundError" };
const exists = { code: "MessageEntityAlreadyExistsError", statusCode: 409 };

function assertHas(found, expected) {
  for (const [property, value] of Object.entries(expected)) {
    assert.deepEqual(found[property], value, property);
  }
}

const isRecent = (instant) => Math.abs(instant - Date.now()) < 30_000;

behaviour("administration of topics", () => {
  const client = connect(plain);

  it("creates a topic with the service's defaults", async () => {
    const name = newName("topic");
    const topic = await administration.createTopic(name);
    assert.equal(topic._response.status, 201);
    assertHas(topic, {
      name,
      defaultMessageTimeToLive: forever,
      requiresDuplicateDetection: false,
      duplicateDetectionHistoryTimeWindow: "PT10M",
      enableBatchedOperations: true,
      status: "Active",
      supportOrdering: true,
      autoDeleteOnIdle: forever,
      enablePartitioning: false,
      enableExpress: false,
      availabilityStatus: "Available",
    });
  });

  it("creates a topic with the given properties", async () => {
    const described = {
      defaultMessageTimeToLive: "P1D",
      maxSizeInMegabytes: 3072,
      requiresDuplicateDetection: true,
      duplicateDetectionHistoryTimeWindow: "PT5M",
      enableBatchedOperations: false,
      status: "SendDisabled",
      userMetadata: "notes & <more>",
      autoDeleteOnIdle: "PT2H",
    };
    const name = newName("topic");
    assertHas(await administration.createTopic(name, described), described);
    assertHas(await administration.getTopic(name), described);
  });

  it("updates a topic, but no properties fixed at creation", async () => {
    const topic = await administration.getTopic(await makeTopic());
    const changes = { defaultMessageTimeToLive: "PT30M", userMetadata: "changed", maxSizeInMegabytes: 2048 };
    assertHas(await administration.updateTopic({ ...topic, ...changes }), changes);
    assertHas(await administration.getTopic(topic.name), changes);
    const refused = { name: "RestError", statusCode: 400 };
    await assert.rejects(administration.updateTopic({ ...topic, requiresDuplicateDetection: true }), refused);
  });

  it("reports whether a topic exists, and errors with their codes", async () => {
    const name = newName("topic");
    assert.equal(await administration.topicExists(name), false);
    await assert.rejects(administration.getTopic(name), missing);
    await assert.rejects(administration.deleteTopic(name), missing);
    await assert.rejects(administration.createSubscription(name, "one"), missing);
    const topic = await administration.createTopic(name);
    assert.equal(await administration.topicExists(name), true);
    await assert.rejects(administration.createTopic(name), exists);
    await assert.rejects(administration.createQueue(name), exists);
    await administration.deleteTopic(name);
    assert.equal(await administration.topicExists(name), false);
    await assert.rejects(administration.updateTopic(topic), missing);
  });

  it("counts the subscriptions and scheduled messages of a topic", async () => {
    const topic = await makeTopic();
    await administration.createSubscription(topic, "one");
    await administration.createSubscription(topic, "two");
    await client.createSender(topic).scheduleMessages([{ body: 1 }, { body: 2 }], inSeconds(3600));
    const found = await administration.getTopicRuntimeProperties(topic);
    assertHas(found, { name: topic, subscriptionCount: 2, scheduledMessageCount: 2 });
    assert.ok([found.createdAt, found.modifiedAt, found.accessedAt].every(isRecent));
    // The size is updated periodically.
    await until(async () => (await administration.getTopicRuntimeProperties(topic)).sizeInBytes > 0);
  });

  it("lists topics and their subscription counts", async () => {
    const [first] = await makeSubscription();
    const second = await makeTopic({ userMetadata: "second" });
    const topics = (await all(administration.listTopics())).filter(({ name }) => [first, second].includes(name));
    assert.deepEqual(topics.map(({ name }) => name), [first, second]);
    assert.equal(topics[1].userMetadata, "second");
    const runtimes = await all(administration.listTopicsRuntimeProperties());
    const counted = runtimes.filter(({ name }) => [first, second].includes(name));
    assert.deepEqual(counted.map(({ subscriptionCount }) => subscriptionCount), [1, 0]);
  });
});

behaviour("administration of subscriptions", () => {
  const client = connect(plain);

  it("creates a subscription with the service's defaults and a rule that matches everything", async () => {
    const topic = await makeTopic();
    const subscription = await administration.createSubscription(topic, "one");
    assert.equal(subscription._response.status, 201);
    assertHas(subscription, {
      topicName: topic,
      subscriptionName: "one",
      lockDuration: "PT1M",
      requiresSession: false,
      defaultMessageTimeToLive: forever,
      deadLetteringOnMessageExpiration: false,
      deadLetteringOnFilterEvaluationExceptions: true,
      maxDeliveryCount: 10,
      enableBatchedOperations: true,
      status: "Active",
      forwardTo: undefined,
      forwardDeadLetteredMessagesTo: undefined,
      autoDeleteOnIdle: forever,
      availabilityStatus: "Available",
    });
    const rules = await all(administration.listRules(topic, "one"));
    assert.deepEqual(rules.map(({ name, filter }) => [name, filter.sqlExpression]), [["$Default", "1=1"]]);
  });

  it("creates a subscription with the given properties", async () => {
    const described = {
      lockDuration: "PT50S",
      requiresSession: true,
      defaultMessageTimeToLive: "PT3H",
      deadLetteringOnMessageExpiration: true,
      deadLetteringOnFilterEvaluationExceptions: false,
      maxDeliveryCount: 5,
      enableBatchedOperations: false,
      status: "ReceiveDisabled",
      userMetadata: "notes",
      autoDeleteOnIdle: "P1D",
    };
    const topic = await makeTopic();
    assertHas(await administration.createSubscription(topic, "one", described), described);
    assertHas(await administration.getSubscription(topic, "one"), described);
  });

  it("forwards to a queue", async () => {
    const [queue, topic] = [await makeQueue(), await makeTopic()];
    await administration.createSubscription(topic, "one", { forwardTo: queue, forwardDeadLetteredMessagesTo: queue });
    const { forwardTo, forwardDeadLetteredMessagesTo } = await administration.getSubscription(topic, "one");
    assert.ok(forwardTo.endsWith(`/${queue}`), forwardTo);
    assert.ok(forwardDeadLetteredMessagesTo.endsWith(`/${queue}`), forwardDeadLetteredMessagesTo);
  });

  it("updates a subscription, but no properties fixed at creation", async () => {
    const subscription = await administration.getSubscription(...(await makeSubscription()));
    const changes = { lockDuration: "PT20S", maxDeliveryCount: 2, userMetadata: "changed", status: "Disabled" };
    assertHas(await administration.updateSubscription({ ...subscription, ...changes }), changes);
    const { topicName, subscriptionName } = subscription;
    assertHas(await administration.getSubscription(topicName, subscriptionName), changes);
    const refused = { name: "RestError", statusCode: 400 };
    await assert.rejects(administration.updateSubscription({ ...subscription, requiresSession: true }), refused);
  });

  it("reports whether a subscription exists, and errors with their codes", async () => {
    const topic = await makeTopic();
    assert.equal(await administration.subscriptionExists(topic, "one"), false);
    await assert.rejects(administration.getSubscription(topic, "one"), missing);
    await assert.rejects(administration.deleteSubscription(topic, "one"), missing);
    await administration.createSubscription(topic, "one");
    assert.equal(await administration.subscriptionExists(topic, "one"), true);
    await assert.rejects(administration.createSubscription(topic, "one"), exists);
    await administration.deleteSubscription(topic, "one");
    assert.equal(await administration.subscriptionExists(topic, "one"), false);
    await administration.createSubscription(topic, "two");
    await administration.deleteTopic(topic);
    assert.equal(await administration.subscriptionExists(topic, "two"), false);
  });

  it("counts a subscription's messages by their state", async () => {
    const [topic, name] = await makeSubscription();
    await client.createSender(topic).sendMessages([{ body: 1 }, { body: 2 }, { body: 3 }]);
    const receiver = client.createReceiver(topic, name);
    await receiver.deadLetterMessage(await receiveOne(receiver));
    const found = await administration.getSubscriptionRuntimeProperties(topic, name);
    assertHas(found, {
      topicName: topic,
      subscriptionName: name,
      totalMessageCount: 3,
      activeMessageCount: 2,
      deadLetterMessageCount: 1,
      transferMessageCount: 0,
      transferDeadLetterMessageCount: 0,
    });
    assert.ok([found.createdAt, found.modifiedAt, found.accessedAt].every(isRecent));
  });

  it("lists the subscriptions of a topic and their message counts", async () => {
    const topic = await makeTopic();
    await administration.createSubscription(topic, "b", { maxDeliveryCount: 4 });
    await administration.createSubscription(topic, "a");
    await client.createSender(topic).sendMessages({ body: "counted" });
    const listed = await all(administration.listSubscriptions(topic));
    const found = listed.map((item) => [item.subscriptionName, item.topicName, item.maxDeliveryCount]);
    assert.deepEqual(found.sort(), [["a", topic, 10], ["b", topic, 4]]);
    const runtimes = await all(administration.listSubscriptionsRuntimeProperties(topic));
    assert.deepEqual(runtimes.map(({ activeMessageCount }) => activeMessageCount), [1, 1]);
    assert.deepEqual(await all(administration.listSubscriptions(await makeTopic())), []);
  });
});
