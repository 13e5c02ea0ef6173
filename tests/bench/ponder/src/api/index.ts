import { Hono } from "hono";

export default new Hono(); // Ponder does not start without one
