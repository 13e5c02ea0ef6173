// What a check throws for input that it refuses; `failure` is the vector's failure class.
export class Refused extends Error {
  constructor(failure) {
    super(failure);
    this.failure = failure;
  }
}
