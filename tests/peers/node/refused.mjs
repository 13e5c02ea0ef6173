// Thrown by a check for input that it rejects. `failure` is the vector's failure class.
export class Refused extends Error {
  constructor(failure) {
    super(failure);
    this.failure = failure;
  }
}
