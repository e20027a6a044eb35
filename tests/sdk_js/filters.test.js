// Rules of subscriptions: which messages their filters match, and how their actions change messages.

import assert from "node:assert/strict";
import { it } from "node:test";
import { administration, behaviour, bodies, connect, makeTopic, receive, receiveNothing, tls } from "./bus.js";

const messages = [
  { body: "tea", subject: "drink", correlationId: "1", applicationProperties: { price: 3, hot: true, from: "Assam" } },
  { body: "juice", subject: "drink", correlationId: "2", applicationProperties: { price: 4.5, hot: false } },
  { body: "bread", subject: "food", correlationId: "1", to: "home", applicationProperties: { price: 2, from: "here" } },
  { body: "soup", subject: "food", contentType: "text/plain", applicationProperties: { price: 7, hot: true } },
];

behaviour("filters", () => {
  const client = connect(tls);

  // Create a subscription with one rule, and return the messages above that it receives.
  async function received(filter, action) {
    const topic = await makeTopic();
    await administration.createSubscription(topic, "one", { defaultRuleOptions: { name: "rule", filter, action } });
    await administration.createSubscription(topic, "end");
    await client.createSender(topic).sendMessages(messages);
    await receive(client.createReceiver(topic, "end"), messages.length);
    const { activeMessageCount } = await administration.getSubscriptionRuntimeProperties(topic, "one");
    const receiver = client.createReceiver(topic, "one", { receiveMode: "receiveAndDelete" });
    return receive(receiver, activeMessageCount);
  }

  for (const [sqlExpression, expected] of [
    ["1=1", ["tea", "juice", "bread", "soup"]],
    ["1=0", []],
    ["price > 3", ["juice", "soup"]],
    ["price >= 2 AND price <= 3", ["tea", "bread"]],
    ["hot = TRUE", ["tea", "soup"]],
    ["hot IS NULL", ["bread"]],
    ["EXISTS(\"from\")", ["tea", "bread"]],
    ["sys.Label = 'food' OR price = 4.5", ["juice", "bread", "soup"]],
    ["sys.Label IN ('food', 'fuel')", ["bread", "soup"]],
    ["NOT (sys.Label = 'food')", ["tea", "juice"]],
    ["[from] LIKE 'A%'", ["tea"]],
    ["user.price * 2 = 14", ["soup"]],
    ["sys.CorrelationId = '1' AND sys.To = 'home'", ["bread"]],
    ["sys.ContentType = 'text/plain'", ["soup"]],
  ]) {
    it(`${sqlExpression} matches ${expected.join(", ") || "nothing"}`, async () => {
      assert.deepEqual(bodies(await received({ sqlExpression })), expected);
    });
  }

  for (const [filter, expected] of [
    [{ subject: "drink" }, ["tea", "juice"]],
    [{ correlationId: "1" }, ["tea", "bread"]],
    [{ correlationId: "1", to: "home" }, ["bread"]],
    [{ contentType: "text/plain" }, ["soup"]],
    [{ subject: "Drink" }, []],
    [{ applicationProperties: { hot: true } }, ["tea", "soup"]],
    [{ applicationProperties: { price: 3 } }, ["tea"]],
    [{ applicationProperties: { price: 4.5 } }, ["juice"]],
    [{ subject: "food", applicationProperties: { hot: true, price: 7 } }, ["soup"]],
    [{ applicationProperties: { from: "nowhere" } }, []],
  ]) {
    it(`${JSON.stringify(filter)} matches ${expected.join(", ") || "nothing"}`, async () => {
      assert.deepEqual(bodies(await received(filter)), expected);
    });
  }

  it("uses the parameters of an expression", async () => {
    const sqlParameters = { "@least": 3, "@kind": "food" };
    const filter = { sqlExpression: "price > @least AND sys.Label = @kind", sqlParameters };
    assert.deepEqual(bodies(await received(filter)), ["soup"]);
  });

  it("changes messages by the action of a SQL rule", async () => {
    const sqlExpression = "SET sys.Label = 'changed'; SET total = price * 2; SET note = 'new'; REMOVE hot";
    const [tea] = await received({ sqlExpression: "price = 3" }, { sqlExpression });
    assert.equal(tea.body, "tea");
    assert.equal(tea.subject, "changed");
    const expected = { price: 3, from: "Assam", total: 6, note: "new", RuleName: "rule" };
    assert.deepEqual(tea.applicationProperties, expected);
  });

  it("changes a message by the action of a correlation rule", async () => {
    const changed = await received({ subject: "drink" }, { sqlExpression: "SET sys.ReplyTo = 'bar'" });
    assert.deepEqual(changed.map(({ body, replyTo }) => [body, replyTo]), [["tea", "bar"], ["juice", "bar"]]);
  });

  it("delivers one copy for all rules without an action, and one for each rule with an action", async () => {
    const topic = await makeTopic();
    const filter = { subject: "food" };
    await administration.createSubscription(topic, "rules", { defaultRuleOptions: { name: "first", filter } });
    await administration.createRule(topic, "rules", "second", { sqlExpression: "price > 1" });
    await administration.createRule(topic, "rules", "third", filter, { sqlExpression: "SET by = 'third'" });
    await administration.createRule(topic, "rules", "fourth", filter, { sqlExpression: "SET by = 'fourth'" });
    await client.createSender(topic).sendMessages(messages[2]);
    const receiver = client.createReceiver(topic, "rules", { receiveMode: "receiveAndDelete" });
    const copies = await receive(receiver, 3);
    assert.deepEqual(copies.map((copy) => copy.applicationProperties.by ?? "none").sort(), ["fourth", "none", "third"]);
    assert.deepEqual(await receiveNothing(receiver), []);
  });

  it("dead-letters a message whose filter evaluation fails, if enabled", async () => {
    const topic = await makeTopic();
    const filter = { sqlExpression: "price / 0 = 1" };
    const options = { deadLetteringOnFilterEvaluationExceptions: true, defaultRuleOptions: { name: "rule", filter } };
    await administration.createSubscription(topic, "strict", options);
    await client.createSender(topic).sendMessages({ body: "tea", applicationProperties: { price: 3 } });
    const [dead] = await receive(client.createReceiver(topic, "strict", { subQueueType: "deadLetter" }));
    assert.equal(dead.body, "tea");
    assert.match(dead.deadLetterReason, /filter|evaluation/i);
  });
});
