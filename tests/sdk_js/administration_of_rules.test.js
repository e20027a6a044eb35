// Rules over HTTP: made, looked at, changed, deleted, listed.

import assert from "node:assert/strict";
import { it } from "node:test";
import { administration, all, behaviour, bodies, connect, makeSubscription, makeTopic, plain, receive } from "./bus.js";

const missing = { code: "MessageEntityNotFoundError" };
const exists = { code: "MessageEntityAlreadyExistsError", statusCode: 409 };

behaviour("administration of rules", () => {
  const client = connect(plain);

  it("makes a SQL rule with parameters and an action", async () => {
    const place = await makeSubscription();
    const filter = {
      sqlExpression: "price > @least AND name <> @not AND ok = @ok",
      sqlParameters: { "@least": 2.5, "@not": "x", "@ok": true },
    };
    const action = { sqlExpression: "SET total = price * @by", sqlParameters: { "@by": 2 } };
    const made = await administration.createRule(...place, "rule", filter, action);
    assert.equal(made._response.status, 201);
    for (const rule of [made, await administration.getRule(...place, "rule")]) {
      assert.equal(rule.name, "rule");
      assert.deepEqual(rule.filter, filter);
      assert.deepEqual(rule.action, action);
    }
  });

  it("makes a correlation rule with all that it can compare", async () => {
    const place = await makeSubscription();
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
    await administration.createRule(...place, "rule", filter);
    const rule = await administration.getRule(...place, "rule");
    assert.deepEqual(rule.filter, filter);
    assert.equal(rule.action.sqlExpression, undefined);
  });

  it("makes a subscription's first rule with it", async () => {
    const topic = await makeTopic();
    const defaultRuleOptions = { name: "first", filter: { subject: "red" }, action: { sqlExpression: "SET seen = 1" } };
    await administration.createSubscription(topic, "one", { defaultRuleOptions });
    const [rule, ...others] = await all(administration.listRules(topic, "one"));
    assert.deepEqual(others, []);
    assert.deepEqual([rule.name, rule.filter.subject, rule.action.sqlExpression], ["first", "red", "SET seen = 1"]);
  });

  it("changes a rule, and what is let through from then on", async () => {
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

  it("changes one kind of filter into the other", async () => {
    const place = await makeSubscription();
    const rule = await administration.createRule(...place, "rule", { subject: "red" });
    await administration.updateRule(...place, { ...rule, filter: { sqlExpression: "1=0" } });
    assert.equal((await administration.getRule(...place, "rule")).filter.sqlExpression, "1=0");
  });

  it("says whether a rule exists, and what is wrong with it", async () => {
    const place = await makeSubscription();
    assert.equal(await administration.ruleExists(...place, "rule"), false);
    await assert.rejects(administration.getRule(...place, "rule"), missing);
    await assert.rejects(administration.deleteRule(...place, "rule"), missing);
    const rule = await administration.createRule(...place, "rule", { subject: "red" });
    assert.equal(await administration.ruleExists(...place, "rule"), true);
    await assert.rejects(administration.createRule(...place, "rule", { subject: "red" }), exists);
    await administration.deleteRule(...place, "rule");
    assert.equal(await administration.ruleExists(...place, "rule"), false);
    await assert.rejects(administration.updateRule(...place, rule), missing);
    await assert.rejects(administration.createRule(place[0], "none", "rule", { subject: "red" }), missing);
    const refused = { code: "ServiceError", statusCode: 400 };
    await assert.rejects(administration.createRule(...place, "bad", { sqlExpression: "a = = b" }), refused);
    const action = { sqlExpression: "SET = 1" };
    await assert.rejects(administration.createRule(...place, "bad", { sqlExpression: "1=1" }, action), refused);
    assert.deepEqual((await all(administration.listRules(...place))).map(({ name }) => name), ["$Default"]);
  });

  it("lists what the rule manager made, and the other way round", async () => {
    const place = await makeSubscription();
    const manager = client.createRuleManager(...place);
    await administration.createRule(...place, "over-HTTP", { subject: "red" });
    await manager.createRule("over-AMQP", { subject: "blue" });
    const expected = ["$Default", "over-AMQP", "over-HTTP"];
    assert.deepEqual((await all(manager.listRules())).map(({ name }) => name).sort(), expected);
    const listed = await all(administration.listRules(...place));
    assert.deepEqual(listed.map(({ name }) => name).sort(), expected);
    assert.equal(listed.find(({ name }) => name === "over-AMQP").filter.subject, "blue");
  });
});
