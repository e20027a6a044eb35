// One connection string, of the AMQP port, serves messaging and administration; a plain AMQP client uses the same port.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { it } from "node:test";
import { ServiceBusAdministrationClient, parseServiceBusConnectionString } from "@azure/service-bus";
import rhea from "rhea"; // the AMQP client of the SDK
import { behaviour, connect, newName, plain, receiveOne } from "./bus.js";

const administration = new ServiceBusAdministrationClient(plain, { retryOptions: { maxRetries: 0 } });

// Send one message with rhea, receive it on the same connection, and return its body.
function sendAndReceive(queue, options) {
  const { endpoint, sharedAccessKey, sharedAccessKeyName } = parseServiceBusConnectionString(plain);
  const { hostname, port } = new URL(endpoint.replace("sb:", "http:"));
  const credentials = { username: sharedAccessKeyName, password: sharedAccessKey };
  const container = rhea.create_container();
  return new Promise((resolve, reject) => {
    const connection = container.connect({ host: hostname, port: Number(port), reconnect: false, ...credentials, ...options });
    connection.open_sender(queue).once("sendable", ({ sender }) => sender.send({ body: "hello" }));
    connection.open_receiver(queue);
    container.on("message", ({ message }) => {
      connection.close();
      resolve(message.body);
    });
    for (const event of ["connection_error", "disconnected", "sender_error", "receiver_error"]) {
      container.on(event, (context) => reject(context.error ?? new Error(event)));
    }
  });
}

behaviour("one port", () => {
  it("creates a queue, sends and receives with one connection string", async () => {
    const { name } = await administration.createQueue(newName("queue"));
    const client = connect(plain);
    await client.createSender(name).sendMessages({ body: "hello" });
    const receiver = client.createReceiver(name);
    const message = await receiveOne(receiver);
    assert.equal(message.body, "hello");
    await receiver.completeMessage(message);
    assert.equal((await administration.getQueueRuntimeProperties(name)).totalMessageCount, 0);
  });

  for (const [kind, options] of [
    ["without TLS", {}],
    ["with TLS", { transport: "tls", ca: readFileSync(process.env.NODE_EXTRA_CA_CERTS), servername: "localhost" }],
  ]) {
    it(`sends and receives with rhea ${kind}`, async () => {
      const { name } = await administration.createQueue(newName("queue"));
      assert.equal(await sendAndReceive(name, options), "hello");
    });
  }
});
