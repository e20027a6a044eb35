// Refusals: the SDK's error codes for missing entities, missing rights and disabled entities.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { it } from "node:test";
import { ServiceBusAdministrationClient } from "@azure/service-bus";
import {
  administration, behaviour, connect, inSeconds, makeQueue, makeTopic, newName, pause, peekAll, plain, receiveOne,
  tls, until, withKey,
} from "./bus.js";

const message = { body: "x" };
const unauthorized = { code: "UnauthorizedAccess" };
const notFound = { code: "MessagingEntityNotFound" };

behaviour("refusals", () => {
  const client = connect(plain);

  it("does not find a missing queue", async () => {
    const queue = newName("missing");
    await assert.rejects(client.createSender(queue).sendMessages(message), notFound);
    await assert.rejects(client.createReceiver(queue).receiveMessages(1), notFound);
    await assert.rejects(client.createReceiver(queue).peekMessages(1), notFound);
    await assert.rejects(client.acceptNextSession(queue), notFound);
    await assert.rejects(client.createSender(queue).scheduleMessages(message, inSeconds(60)), notFound);
  });

  it("does not find a missing subscription", async () => {
    const topic = await makeTopic();
    await assert.rejects(client.createReceiver(topic, "missing").receiveMessages(1), notFound);
    await assert.rejects(client.createReceiver(newName("missing"), "missing").receiveMessages(1), notFound);
  });

  it("refuses to send to a deleted queue", async () => {
    const queue = await makeQueue();
    const sender = client.createSender(queue);
    await sender.sendMessages(message);
    await administration.deleteQueue(queue);
    await pause(300); // a send that crosses the detach would wait for the SDK's timeout
    await assert.rejects(sender.sendMessages(message), notFound);
  });

  it("reports a deleted queue to the error handler", async () => {
    const queue = await makeQueue();
    const [seen, codes] = [[], []];
    const subscription = client.createReceiver(queue).subscribe({
      processMessage: async ({ body }) => void seen.push(body),
      processError: async ({ error }) => void codes.push(error.code),
    });
    await client.createSender(queue).sendMessages(message);
    await until(async () => seen.length > 0 && (await peekAll(client.createReceiver(queue))).length === 0);
    await administration.deleteQueue(queue);
    await until(() => codes.length > 0);
    await subscription.close();
    assert.equal(codes[0], "MessagingEntityNotFound");
  });

  for (const [kind, connectionString] of [["without TLS", plain], ["with TLS", tls]]) {
    it(`refuses a wrong key ${kind}`, async () => {
      const queue = await makeQueue();
      const unauthorizedClient = connect(withKey(connectionString, "RootManageSharedAccessKey", "wrong"));
      await assert.rejects(unauthorizedClient.createSender(queue).sendMessages(message), unauthorized);
      await assert.rejects(unauthorizedClient.createReceiver(queue).receiveMessages(1), unauthorized);
      await assert.rejects(unauthorizedClient.createReceiver(queue).peekMessages(1), unauthorized);
    });
  }

  it("refuses an unknown key name", async () => {
    const unauthorizedClient = connect(withKey(plain, "NoSuchKey", "whatever"));
    await assert.rejects(unauthorizedClient.createSender(await makeQueue()).sendMessages(message), unauthorized);
  });

  // Create a queue with a key for each right, and a client for each key.
  async function createProtectedQueue() {
    const keys = Object.fromEntries(["Send", "Listen"].map((right) => [right, randomBytes(32).toString("base64")]));
    const authorizationRules = Object.entries(keys).map(([right, primaryKey]) => ({
      claimType: "SharedAccessKey",
      keyName: `only${right}`,
      accessRights: [right],
      primaryKey,
      secondaryKey: randomBytes(32).toString("base64"),
    }));
    const queue = await makeQueue({ authorizationRules });
    const connectWith = (right) => connect(withKey(plain, `only${right}`, keys[right]));
    return { queue, sending: connectWith("Send"), listening: connectWith("Listen"), keys };
  }

  it("allows a key only the operations of its rights", async () => {
    const { queue, sending, listening } = await createProtectedQueue();
    await sending.createSender(queue).sendMessages(message);
    await sending.createSender(queue).scheduleMessages(message, inSeconds(3600));
    await assert.rejects(sending.createReceiver(queue).receiveMessages(1), unauthorized);
    await assert.rejects(sending.createReceiver(queue).peekMessages(1), unauthorized);

    const receiver = listening.createReceiver(queue);
    assert.equal((await receiver.peekMessages(1)).length, 1);
    await receiver.completeMessage(await receiveOne(receiver));
    await assert.rejects(listening.createSender(queue).sendMessages(message), unauthorized);
    await assert.rejects(listening.createSender(queue).scheduleMessages(message, inSeconds(60)), unauthorized);
  });

  it("refuses the key of one queue for another queue", async () => {
    const { sending } = await createProtectedQueue();
    await assert.rejects(sending.createSender(await makeQueue()).sendMessages(message), unauthorized);
  });

  it("refuses administration with a key without Manage", async () => {
    const { queue, keys } = await createProtectedQueue();
    const connectionString = withKey(process.env.TWINBUS_ADMINISTRATION, "onlySend", keys.Send);
    const sendOnlyAdministration = new ServiceBusAdministrationClient(connectionString);
    const refused = { code: "UnauthorizedRequestError", statusCode: 401 };
    await assert.rejects(sendOnlyAdministration.getQueue(queue), refused);
    await assert.rejects(sendOnlyAdministration.createQueue(newName("queue")), refused);
    await assert.rejects(sendOnlyAdministration.deleteQueue(queue), refused);
  });

  it("sends to and receives from a queue only as its status allows", async () => {
    const queue = await makeQueue();
    const change = async (status) => administration.updateQueue({ ...(await administration.getQueue(queue)), status });
    const disabled = { code: "MessagingEntityDisabled" };
    await change("SendDisabled");
    await assert.rejects(client.createSender(queue).sendMessages(message), disabled);
    await change("ReceiveDisabled");
    await client.createSender(queue).sendMessages(message);
    await assert.rejects(client.createReceiver(queue).receiveMessages(1), disabled);
    await change("Active");
    assert.equal((await receiveOne(client.createReceiver(queue))).body, "x");
  });
});
