// Paging: lists over several pages are complete and without duplicates; and the properties of the namespace.

import assert from "node:assert/strict";
import { it } from "node:test";
import { administration, all, behaviour, makeSubscription, makeTopic } from "./bus.js";

// Return the sizes of the pages, and all their items.
async function pages(iterator, maxPageSize) {
  const [sizes, found] = [[], []];
  for await (const page of iterator.byPage({ maxPageSize })) {
    sizes.push(page.length);
    found.push(...page);
  }
  return [sizes, found];
}

const names = (count, kind) => Array.from({ length: count }, (_, number) => `${kind}-${`${number}`.padStart(3, "0")}`);

behaviour("administration by pages", () => {
  it("lists subscriptions and their counts by page", async () => {
    const topic = await makeTopic();
    const expected = names(7, "subscription");
    await Promise.all(expected.map((name) => administration.createSubscription(topic, name)));
    const [sizes, found] = await pages(administration.listSubscriptions(topic), 3);
    assert.deepEqual(sizes.filter((size) => size > 0), [3, 3, 1]);
    assert.deepEqual(found.map(({ subscriptionName }) => subscriptionName).sort(), expected);
    const [, counted] = await pages(administration.listSubscriptionsRuntimeProperties(topic), 2);
    assert.deepEqual(counted.map(({ subscriptionName }) => subscriptionName).sort(), expected);
  });

  it("lists rules by page", async () => {
    const subscription = await makeSubscription();
    const expected = names(5, "rule");
    await Promise.all(expected.map((name) => administration.createRule(...subscription, name, { subject: name })));
    const [sizes, found] = await pages(administration.listRules(...subscription), 2);
    assert.deepEqual(sizes.filter((size) => size > 0), [2, 2, 2]);
    assert.deepEqual(found.map(({ name }) => name).sort(), ["$Default", ...expected]);
  });

  it("continues after a page with its continuation token", async () => {
    const topic = await makeTopic();
    await Promise.all(names(5, "subscription").map((name) => administration.createSubscription(topic, name)));
    const first = (await administration.listSubscriptions(topic).byPage({ maxPageSize: 2 }).next()).value;
    const { continuationToken } = first;
    const rest = [];
    for await (const page of administration.listSubscriptions(topic).byPage({ maxPageSize: 2, continuationToken })) {
      rest.push(...page);
    }
    const found = [...first, ...rest].map(({ subscriptionName }) => subscriptionName);
    assert.deepEqual(found.sort(), names(5, "subscription"));
    assert.deepEqual([first.length, rest.length], [2, 3]);
  });

  it("lists all queues and topics with every page size", async () => {
    const made = await Promise.all(Array.from({ length: 4 }, () => makeTopic()));
    for (const size of [1, 2, 100]) {
      const [, found] = await pages(administration.listTopics(), size);
      const [, runtimes] = await pages(administration.listTopicsRuntimeProperties(), size);
      for (const listed of [found, runtimes]) {
        const mine = listed.map(({ name }) => name).filter((name) => made.includes(name));
        assert.deepEqual(mine, [...made].sort());
      }
    }
  });

  it("describes the namespace", async () => {
    const found = await administration.getNamespaceProperties();
    assert.equal(found.name, "contoso");
    assert.ok(["Basic", "Standard", "Premium"].includes(found.messagingSku));
    assert.ok(found.createdAt <= found.modifiedAt);
    assert.ok(found.createdAt <= new Date() && found.createdAt > new Date(2024, 0));
  });
});
