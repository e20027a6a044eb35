// What is not allowed, or not there, is refused with the code that the SDK has for it.

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

  it("knows no queue that was not made", async () => {
    const queue = newName("missing");
    await assert.rejects(client.createSender(queue).sendMessages(message), notFound);
    await assert.rejects(client.createReceiver(queue).receiveMessages(1), notFound);
    await assert.rejects(client.createReceiver(queue).peekMessages(1), notFound);
    await assert.rejects(client.acceptNextSession(queue), notFound);
    await assert.rejects(client.createSender(queue).scheduleMessages(message, inSeconds(60)), notFound);
  });

  it("knows no subscription that was not made", async () => {
    const topic = await makeTopic();
    await assert.rejects(client.createReceiver(topic, "missing").receiveMessages(1), notFound);
    await assert.rejects(client.createReceiver(newName("missing"), "missing").receiveMessages(1), notFound);
  });

  it("lets nobody go on with a queue that was deleted", async () => {
    const queue = await makeQueue();
    const sender = client.createSender(queue);
    await sender.sendMessages(message);
    await administration.deleteQueue(queue);
    await pause(300); // a send that crosses the news would not hear of it: the SDK waits then until its time is over
    await assert.rejects(sender.sendMessages(message), notFound);
  });

  it("tells a handler that its queue was deleted", async () => {
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
    it(`lets nobody in with a wrong key ${kind}`, async () => {
      const queue = await makeQueue();
      const stranger = connect(withKey(connectionString, "RootManageSharedAccessKey", "wrong"));
      await assert.rejects(stranger.createSender(queue).sendMessages(message), unauthorized);
      await assert.rejects(stranger.createReceiver(queue).receiveMessages(1), unauthorized);
      await assert.rejects(stranger.createReceiver(queue).peekMessages(1), unauthorized);
    });
  }

  it("lets nobody in with the name of no key", async () => {
    const stranger = connect(withKey(plain, "NoSuchKey", "whatever"));
    await assert.rejects(stranger.createSender(await makeQueue()).sendMessages(message), unauthorized);
  });

  // A queue with a key for each right; a client for each.
  async function guarded() {
    const keys = Object.fromEntries(["Send", "Listen"].map((right) => [right, randomBytes(32).toString("base64")]));
    const authorizationRules = Object.entries(keys).map(([right, primaryKey]) => ({
      claimType: "SharedAccessKey",
      keyName: `only${right}`,
      accessRights: [right],
      primaryKey,
      secondaryKey: randomBytes(32).toString("base64"),
    }));
    const queue = await makeQueue({ authorizationRules });
    const enter = (right) => connect(withKey(plain, `only${right}`, keys[right]));
    return { queue, sending: enter("Send"), listening: enter("Listen"), keys };
  }

  it("lets a key do what its rights allow, and nothing else", async () => {
    const { queue, sending, listening } = await guarded();
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

  it("lets the key of one queue into no other", async () => {
    const { sending } = await guarded();
    await assert.rejects(sending.createSender(await makeQueue()).sendMessages(message), unauthorized);
  });

  it("lets a key without Manage administer nothing", async () => {
    const { queue, keys } = await guarded();
    const connectionString = withKey(process.env.TWINBUS_ADMINISTRATION, "onlySend", keys.Send);
    const guest = new ServiceBusAdministrationClient(connectionString);
    const refused = { code: "UnauthorizedRequestError", statusCode: 401 };
    await assert.rejects(guest.getQueue(queue), refused);
    await assert.rejects(guest.createQueue(newName("queue")), refused);
    await assert.rejects(guest.deleteQueue(queue), refused);
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
