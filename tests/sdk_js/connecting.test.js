// Connections: without TLS as an emulator, with TLS and the development CA, by key and by signature.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { createHmac } from "node:crypto";
import { it } from "node:test";
import { promisify } from "node:util";
import { parseServiceBusConnectionString } from "@azure/service-bus";
import {
  administration, behaviour, bodies, connect, makeQueue, peekAll, plain, receive, receiveOne, tls,
} from "./bus.js";

// Return a connection string with a signature instead of the key.
function withSignature(connectionString, queue) {
  const { endpoint, sharedAccessKey, sharedAccessKeyName } = parseServiceBusConnectionString(connectionString);
  const resource = encodeURIComponent(`${endpoint}${queue}`);
  const expiry = Math.floor(Date.now() / 1000) + 600;
  const signature = createHmac("sha256", sharedAccessKey).update(`${resource}\n${expiry}`).digest("base64");
  const signed = `sr=${resource}&sig=${encodeURIComponent(signature)}`;
  const token = `SharedAccessSignature ${signed}&se=${expiry}&skn=${sharedAccessKeyName}`;
  const emulator = connectionString.includes("UseDevelopmentEmulator=true") ? ";UseDevelopmentEmulator=true" : "";
  return `Endpoint=${endpoint};SharedAccessSignature=${token}${emulator}`;
}

behaviour("connecting", () => {
  for (const [kind, connectionString] of [["without TLS", plain], ["with TLS", tls]]) {
    const client = connect(connectionString);

    it(`sends and receives ${kind}`, async () => {
      const queue = await makeQueue();
      await client.createSender(queue).sendMessages([{ body: 1 }, { body: 2 }, { body: 3 }]);
      const receiver = client.createReceiver(queue);
      const messages = await receive(receiver, 3);
      assert.deepEqual(bodies(messages), [1, 2, 3]);
      await Promise.all(messages.map((message) => receiver.completeMessage(message)));
      assert.deepEqual(await peekAll(receiver), []);
    });

    it(`delivers a message of many frames ${kind}`, async () => {
      const queue = await makeQueue();
      const body = Buffer.from(Array.from({ length: 200_000 }, (_, index) => index % 251));
      await client.createSender(queue).sendMessages({ body });
      assert.deepEqual((await receiveOne(client.createReceiver(queue))).body, body);
    });

    it(`opens senders and receivers again after they were closed ${kind}`, async () => {
      const queue = await makeQueue();
      for (const body of ["first", "second"]) {
        const sender = client.createSender(queue);
        await sender.sendMessages({ body });
        await sender.close();
        const receiver = client.createReceiver(queue);
        const message = await receiveOne(receiver);
        assert.equal(message.body, body);
        await receiver.completeMessage(message);
        await receiver.close();
        assert.ok(sender.isClosed && receiver.isClosed);
      }
    });

    it(`accepts a shared access signature ${kind}`, async () => {
      const queue = await makeQueue();
      const signedClient = connect(withSignature(connectionString, queue));
      await signedClient.createSender(queue).sendMessages({ body: "signed" });
      assert.equal((await receiveOne(signedClient.createReceiver(queue))).body, "signed");
    });
  }

  it("fails for a client that does not trust the development CA", async () => {
    const environment = { ...process.env };
    delete environment.NODE_EXTRA_CA_CERTS;
    const program = `
      import { administration } from "${new URL("./bus.js", import.meta.url)}";
      await administration.getNamespaceProperties().catch((error) => console.log(error.message));`;
    const arguments_ = ["--input-type=module", "--eval", program];
    const { stdout } = await promisify(execFile)(process.execPath, arguments_, { env: environment });
    assert.match(stdout, /unable to verify|self.signed|unable to get/);
  });
});
