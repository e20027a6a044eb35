// What the programs here share: the connection strings, entities with names that no other test has, small waits.
//
// A program is one behaviour. Its tests run side by side, because the SDK waits a second here and there, so each has an
// entity of its own; they share one connection. test_javascript_sdk.py starts the server and says where it is.

import { webcrypto } from "node:crypto";
import { after, describe } from "node:test";
import { ServiceBusAdministrationClient, ServiceBusClient } from "@azure/service-bus";
import Long from "long"; // comes with the SDK, which takes sequence numbers in no other form

// The SDK is for Node 18 and newer, but what it is made of looks for this where only Node 20 and newer have it.
globalThis.crypto ??= webcrypto;

export const plain = process.env.TWINBUS_PLAIN;
export const tls = process.env.TWINBUS_TLS;

// The SDK's own waits are 60 s for an operation, and 30 s before it is tried again.
const impatient = { retryOptions: { maxRetries: 0, retryDelayInMs: 100, timeoutInMs: 20_000 } };

export const administration = new ServiceBusAdministrationClient(process.env.TWINBUS_ADMINISTRATION, {
  retryOptions: { maxRetries: 0 },
});

// The tests of a program, side by side.
export function behaviour(sentence, tests) {
  describe(sentence, { concurrency: true, timeout: 40_000 }, tests);
}

// A client that is closed when the program's tests are done.
export function connect(connectionString, options = {}) {
  const client = new ServiceBusClient(connectionString, { ...impatient, ...options });
  after(() => client.close());
  return client;
}

// The same namespace, entered with another key.
export function withKey(connectionString, keyName, key) {
  const pair = `SharedAccessKeyName=${keyName};SharedAccessKey=${key}`;
  return connectionString.replace(/SharedAccessKeyName=[^;]+;SharedAccessKey=[^;]+/, () => pair);
}

let made = 0;

export function newName(kind) {
  made += 1;
  return `${kind}-${process.pid}-${made}`;
}

export async function makeQueue(options) {
  const { name } = await administration.createQueue(newName("queue"), options);
  return name;
}

export async function makeTopic(options) {
  const { name } = await administration.createTopic(newName("topic"), options);
  return name;
}

// A topic with one subscription, "all", which takes every message unless `options` say otherwise.
export async function makeSubscription(options) {
  const topic = await makeTopic();
  await administration.createSubscription(topic, "all", options);
  return [topic, "all"];
}

// Exactly as many messages as are there; fewer is a failure of the test.
export async function receive(receiver, count = 1) {
  const messages = [];
  while (messages.length < count) {
    const more = await receiver.receiveMessages(count - messages.length, { maxWaitTimeInMs: 10_000 });
    if (more.length === 0) {
      throw new Error(`${messages.length} of ${count} messages came within 10 s`);
    }
    messages.push(...more);
  }
  return messages;
}

export async function receiveOne(receiver) {
  const [message] = await receive(receiver);
  return message;
}

// Empty if the entity is, after a moment in which a message would have come.
export function receiveNothing(receiver) {
  return receiver.receiveMessages(1, { maxWaitTimeInMs: 300 });
}

// All that is there. Without a number a client goes on behind what it has seen of that entity.
export function peekAll(receiver) {
  return receiver.peekMessages(100, { fromSequenceNumber: Long.ZERO });
}

export const sequenceNumber = (number) => Long.fromNumber(number);

export const bodies = (messages) => messages.map((message) => message.body);

export async function all(iterator) {
  const found = [];
  for await (const item of iterator) {
    found.push(item);
  }
  return found;
}

export const inSeconds = (seconds) => new Date(Date.now() + seconds * 1000);

export const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

// Looks again and again until it is so; returns what made it so.
export async function until(look, patienceMs = 10_000) {
  const deadline = Date.now() + patienceMs;
  for (;;) {
    const seen = await look();
    if (seen) {
      return seen;
    }
    if (Date.now() > deadline) {
      throw new Error(`it has not happened within ${patienceMs} ms: ${look}`);
    }
    await pause(50);
  }
}
