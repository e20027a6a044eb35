// Rules over AMQP with the rule manager: create, list, delete, and their effect on later messages.

import assert from "node:assert/strict";
import { it } from "node:test";
import { administration, all, behaviour, bodies, connect, makeSubscription, newName, plain, receive } from "./bus.js";

behaviour("the rule manager", () => {
  const client = connect(plain);

  async function managed() {
    const [topic, name] = await makeSubscription();
    return [client.createRuleManager(topic, name), topic, name];
  }

  it("lists the default rule of a subscription", async () => {
    const [manager] = await managed();
    const [rule, ...others] = await all(manager.listRules());
    assert.deepEqual(others, []);
    assert.equal(rule.name, "$Default");
    assert.equal(rule.filter.sqlExpression, "1=1");
  });

  it("creates SQL rules with and without an action", async () => {
    const [manager, topic, name] = await managed();
    const filter = { sqlExpression: "quantity > 10 AND colour LIKE 'r%'" };
    await manager.createRule("plain", filter);
    await manager.createRule("acting", filter, { sqlExpression: "SET seen = TRUE; REMOVE colour" });
    const rules = Object.fromEntries((await all(manager.listRules())).map((rule) => [rule.name, rule]));
    assert.deepEqual(Object.keys(rules).sort(), ["$Default", "acting", "plain"]);
    assert.equal(rules.plain.filter.sqlExpression, filter.sqlExpression);
    assert.equal(rules.plain.action.sqlExpression, undefined);
    assert.equal(rules.acting.action.sqlExpression, "SET seen = TRUE; REMOVE colour");
    const { action } = await administration.getRule(topic, name, "acting");
    assert.equal(action.sqlExpression, "SET seen = TRUE; REMOVE colour");
  });

  it("creates correlation rules with every property", async () => {
    const [manager, topic, name] = await managed();
    const filter = {
      correlationId: "c",
      messageId: "m",
      to: "t",
      replyTo: "r",
      subject: "s",
      sessionId: "session",
      replyToSessionId: "other",
      contentType: "text/plain",
      applicationProperties: { text: "x", whole: 3, fraction: 0.5, yes: true },
    };
    await manager.createRule("correlated", filter);
    const rule = (await all(manager.listRules())).find((listed) => listed.name === "correlated");
    assert.deepEqual(rule.filter, filter);
    const kept = (await administration.getRule(topic, name, "correlated")).filter;
    assert.deepEqual([kept.subject, kept.correlationId, kept.contentType], ["s", "c", "text/plain"]);
    assert.equal(kept.applicationProperties.text, "x");
    assert.equal(kept.applicationProperties.yes, true);
  });

  it("compares dates", async () => {
    const [manager, topic, name] = await managed();
    const at = new Date("2024-02-29T12:34:56.789Z");
    await manager.deleteRule("$Default");
    await manager.createRule("dated", { applicationProperties: { at } });
    const messages = [at, new Date(0)].map((date, body) => ({ body, applicationProperties: { at: date } }));
    await client.createSender(topic).sendMessages([...messages].reverse());
    assert.deepEqual(bodies(await receive(client.createReceiver(topic, name))), [0]);
  });

  it("changes which later messages a subscription gets", async () => {
    const [manager, topic, name] = await managed();
    const sender = client.createSender(topic);
    await sender.sendMessages({ body: "before", subject: "blue" });
    await manager.createRule("red", { subject: "red" });
    await manager.deleteRule("$Default");
    await sender.sendMessages([{ body: "blue", subject: "blue" }, { body: "red", subject: "red" }]);
    await manager.deleteRule("red");
    await sender.sendMessages({ body: "after", subject: "red" });
    await manager.createRule("last", { sqlExpression: "sys.Label = 'end'" });
    await sender.sendMessages({ body: "end", subject: "end" });
    const receiver = client.createReceiver(topic, name, { receiveMode: "receiveAndDelete" });
    assert.deepEqual(bodies(await receive(receiver, 3)), ["before", "red", "end"]);
  });

  it("lists more rules than a page has", async () => {
    const [manager] = await managed();
    const names = Array.from({ length: 120 }, (_, number) => `rule-${number}`);
    for (let start = 0; start < names.length; start += 20) {
      const some = names.slice(start, start + 20);
      await Promise.all(some.map((name) => manager.createRule(name, { subject: name })));
    }
    const listed = (await all(manager.listRules())).map((rule) => rule.name);
    assert.deepEqual(listed.sort(), ["$Default", ...names].sort());
  });

  it("reports existing, missing and invalid rules", async () => {
    const [manager] = await managed();
    await manager.createRule("twice", { subject: "x" });
    await assert.rejects(manager.createRule("twice", { subject: "y" }), { code: "MessagingEntityAlreadyExists" });
    await assert.rejects(manager.deleteRule("missing"), { code: "MessagingEntityNotFound" });
    await assert.rejects(manager.createRule("bad", { sqlExpression: "a = = b" }), { name: "ServiceBusError" });
    const listed = (await all(manager.listRules())).map((rule) => rule.name);
    assert.deepEqual(listed.sort(), ["$Default", "twice"]);
  });

  it("reports a missing subscription", async () => {
    const manager = client.createRuleManager(newName("missing"), "none");
    await assert.rejects(all(manager.listRules()), { code: "MessagingEntityNotFound" });
  });
});
