// Helpers of the test programs: connection strings, entities with unique names, and waits.
//
// A program tests one behaviour. Its tests run concurrently, because the SDK often waits for a second, so each test has
// its own entity; they share one connection. test_javascript_sdk.py starts the server and passes its addresses.

import { webcrypto } from "node:crypto";
import { after, describe } from "node:test";
import { ServiceBusAdministrationClient, ServiceBusClient } from "@azure/service-bus";
import Long from "long"; // part of the SDK, which accepts sequence numbers in no other form

// The SDK supports Node 18, but its dependencies expect a global that exists only in Node 20 and newer.
globalThis.crypto ??= webcrypto;

export const plain = process.env.TWINBUS_PLAIN;
export const tls = process.env.TWINBUS_TLS;

// Shorter than the SDK's defaults: 60 s for an operation, and 30 s before a retry.
const shortTimeouts = { retryOptions: { maxRetries: 0, retryDelayInMs: 100, timeoutInMs: 20_000 } };

export const administration = new ServiceBusAdministrationClient(process.env.TWINBUS_ADMINISTRATION, {
  retryOptions: { maxRetries: 0 },
});

// Run the tests of a program concurrently.
export function behaviour(name, tests) {
  describe(name, { concurrency: true, timeout: 40_000 }, tests);
}

// Return a client that is closed when the program's tests have ended.
export function connect(connectionString, options = {}) {
  const client = new ServiceBusClient(connectionString, { ...shortTimeouts, ...options });
  after(() => client.close());
  return client;
}

// Return a connection string with another key.
export function withKey(connectionString, keyName, key) {
  const pair = `SharedAccessKeyName=${keyName};SharedAccessKey=${key}`;
  return connectionString.replace(/SharedAccessKeyName=[^;]+;SharedAccessKey=[^;]+/, () => pair);
}

let entityCount = 0;

export function newName(kind) {
  entityCount += 1;
  return `${kind}-${process.pid}-${entityCount}`;
}

export async function makeQueue(options) {
  const { name } = await administration.createQueue(newName("queue"), options);
  return name;
}

export async function makeTopic(options) {
  const { name } = await administration.createTopic(newName("topic"), options);
  return name;
}

// Create a topic with one subscription, "all" (default: with a rule that matches every message).
export async function makeSubscription(options) {
  const topic = await makeTopic();
  await administration.createSubscription(topic, "all", options);
  return [topic, "all"];
}

// Receive exactly `count` messages, or throw an error.
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

// Return an empty array if no message arrives within 300 ms.
export function receiveNothing(receiver) {
  return receiver.receiveMessages(1, { maxWaitTimeInMs: 300 });
}

// Peek all messages. Without a sequence number, a client would continue after its last peek.
export function peekAll(receiver) {
  return receiver.peekMessages(100, { fromSequenceNumber: Long.ZERO });
}

export const sequenceNumber = (number) => Long.fromNumber(number);

export const bodies = (messages) => messages.map((message) => message.body);

export async function all(iterator) {
  const items = [];
  for await (const item of iterator) {
    items.push(item);
  }
  return items;
}

export const inSeconds = (seconds) => new Date(Date.now() + seconds * 1000);

export const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

// Call `check` repeatedly until its result is truthy; return the result.
export async function until(check, timeoutMs = 10_000) {
  const deadline = Date.now() + timeoutMs;
  for (;;) {
    const result = await check();
    if (result) {
      return result;
    }
    if (Date.now() > deadline) {
      throw new Error(`it has not happened within ${timeoutMs} ms: ${check}`);
    }
    await pause(50);
  }
}
