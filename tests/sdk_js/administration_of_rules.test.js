// Rules over HTTP: create, get, update, delete and list.

import assert from "node:assert/strict";
import { it } from "node:test";
import { administration, all, behaviour, bodies, connect, makeSubscription, makeTopic, plain, receive } from "./bus.js";

const missing = { code: "MessageEntityNotFoundError" };
const exists = { code: "MessageEntityAlreadyExistsError", statusCode: 409 };

behaviour("administration of rules", () => {
  const client = connect(plain);

  it("creates a SQL rule with parameters and an action", async () => {
    const subscription = await makeSubscription();
    const filter = {
      sqlExpression: "price > @least AND name <> @not AND ok = @ok",
      sqlParameters: { "@least": 2.5, "@not": "x", "@ok": true },
    };
    const action = { sqlExpression: "SET total = price * @by", sqlParameters: { "@by": 2 } };
    const made = await administration.createRule(...subscription, "rule", filter, action);
    assert.equal(made._response.status, 201);
    for (const rule of [made, await administration.getRule(...subscription, "rule")]) {
      assert.equal(rule.name, "rule");
      assert.deepEqual(rule.filter, filter);
      assert.deepEqual(rule.action, action);
    }
  });

  it("creates a correlation rule with every property", async () => {
    const subscription = await makeSubscription();
    const filter = {
      correlationId: "c",
      messageId: "m",
      to: "t",
      replyTo: "r",
      subject: "s <&> ☕",
      sessionId: "session",
      replyToSessionId: "other",
      contentType: "text/plain",
      applicationProperties: { text: "x", price: 0.5, whole: 3, yes: true, at: new Date("2024-02-29T12:34:56.000Z") },
    };
    await administration.createRule(...subscription, "rule", filter);
    const rule = await administration.getRule(...subscription, "rule");
    assert.deepEqual(rule.filter, filter);
    assert.equal(rule.action.sqlExpression, undefined);
  });

  it("creates a subscription with its default rule", async () => {
    const topic = await makeTopic();
    const defaultRuleOptions = { name: "first", filter: { subject: "red" }, action: { sqlExpression: "SET seen = 1" } };
    await administration.createSubscription(topic, "one", { defaultRuleOptions });
    const [rule, ...others] = await all(administration.listRules(topic, "one"));
    assert.deepEqual(others, []);
    assert.deepEqual([rule.name, rule.filter.subject, rule.action.sqlExpression], ["first", "red", "SET seen = 1"]);
  });

  it("updates a rule, which applies to later messages", async () => {
    const [topic, name] = await makeSubscription();
    const rule = await administration.getRule(topic, name, "$Default");
    const changed = { ...rule, filter: { sqlExpression: "colour = 'red'" }, action: { sqlExpression: "SET seen = 1" } };
    assert.equal((await administration.updateRule(topic, name, changed)).filter.sqlExpression, "colour = 'red'");
    const shown = await administration.getRule(topic, name, "$Default");
    assert.deepEqual([shown.filter.sqlExpression, shown.action.sqlExpression], ["colour = 'red'", "SET seen = 1"]);
    const messages = ["blue", "red"].map((colour) => ({ body: colour, applicationProperties: { colour } }));
    await client.createSender(topic).sendMessages(messages);
    const received = await receive(client.createReceiver(topic, name));
    assert.deepEqual(bodies(received), ["red"]);
    assert.equal(received[0].applicationProperties.seen, 1);
  });

  it("replaces a correlation filter with a SQL filter", async () => {
    const subscription = await makeSubscription();
    const rule = await administration.createRule(...subscription, "rule", { subject: "red" });
    await administration.updateRule(...subscription, { ...rule, filter: { sqlExpression: "1=0" } });
    assert.equal((await administration.getRule(...subscription, "rule")).filter.sqlExpression, "1=0");
  });

  it("reports whether a rule exists, and errors with their codes", async () => {
    const subscription = await makeSubscription();
    assert.equal(await administration.ruleExists(...subscription, "rule"), false);
    await assert.rejects(administration.getRule(...subscription, "rule"), missing);
    await assert.rejects(administration.deleteRule(...subscription, "rule"), missing);
    const rule = await administration.createRule(...subscription, "rule", { subject: "red" });
    assert.equal(await administration.ruleExists(...subscription, "rule"), true);
    await assert.rejects(administration.createRule(...subscription, "rule", { subject: "red" }), exists);
    await administration.deleteRule(...subscription, "rule");
    assert.equal(await administration.ruleExists(...subscription, "rule"), false);
    await assert.rejects(administration.updateRule(...subscription, rule), missing);
    await assert.rejects(administration.createRule(subscription[0], "none", "rule", { subject: "red" }), missing);
    const refused = { code: "ServiceError", statusCode: 400 };
    await assert.rejects(administration.createRule(...subscription, "bad", { sqlExpression: "a = = b" }), refused);
    const action = { sqlExpression: "SET = 1" };
    await assert.rejects(administration.createRule(...subscription, "bad", { sqlExpression: "1=1" }, action), refused);
    assert.deepEqual((await all(administration.listRules(...subscription))).map(({ name }) => name), ["$Default"]);
  });

  it("lists rules of the rule manager, and the other way round", async () => {
    const subscription = await makeSubscription();
    const manager = client.createRuleManager(...subscription);
    await administration.createRule(...subscription, "over-HTTP", { subject: "red" });
    await manager.createRule("over-AMQP", { subject: "blue" });
    const expected = ["$Default", "over-AMQP", "over-HTTP"];
    assert.deepEqual((await all(manager.listRules())).map(({ name }) => name).sort(), expected);
    const listed = await all(administration.listRules(...subscription));
    assert.deepEqual(listed.map(({ name }) => name).sort(), expected);
    assert.equal(listed.find(({ name }) => name === "over-AMQP").filter.subject, "blue");
  });
});
